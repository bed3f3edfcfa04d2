"""Dead letters and reviews of commands that are archived by now."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import timedelta
from typing import Any

import httpx
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from laneway_center.store import migrate
from laneway_center.store.database import open_engine
from laneway_center.store.history import ArchiveTerms, archive, drop_letters
from laneway_center.store.letters import Letter, store_letters
from laneway_center.store.partitions import make_partitions
from laneway_shared.lifecycle import ResultKind as K
from support.doors import open_doors
from support.ended import claimed, expired, in_review, tell, used_up
from support.lanes import lane_of
from support.stored import UNLOCK, books_balance, ids, rows, run, store, submission

KIM, WHY = {"X-Operator": "kim"}, {"reason": "found it"}
WEEK = timedelta(days=7)


@pytest.fixture
async def database(new_database: Callable[[], str]) -> AsyncIterator[tuple[str, AsyncEngine]]:
    """One of its own: the archiver takes whatever is final."""
    url = new_database()
    engine = open_engine(url, size=12, name="tests")
    await migrate.upgrade(engine)
    yield url, engine
    await engine.dispose()


@pytest.fixture
async def engine(database: tuple[str, AsyncEngine]) -> AsyncEngine:
    return database[1]


@pytest.fixture
async def http(database: tuple[str, AsyncEngine]) -> AsyncIterator[httpx.AsyncClient]:
    async with open_doors(database[0]) as client:
        yield client


async def archived(engine: AsyncEngine, command_ids: Sequence[str]) -> None:
    """They ended two days ago."""
    older = "finished_at = finished_at - interval '2 days'"
    await run(engine, f"UPDATE point_command SET {older} WHERE command_id = ANY(:c)", c=command_ids)
    await make_partitions(engine, WEEK)
    await archive(engine, ArchiveTerms(hot=timedelta(days=1), retention=WEEK, most=500))
    assert await hot(engine, command_ids) == 0


async def hot(engine: AsyncEngine, command_ids: Sequence[str]) -> int:
    found = await rows(engine, "SELECT count(*) FROM point_command WHERE command_id = ANY(:c)", c=command_ids)
    return int(found[0][0])


async def listed(http: httpx.AsyncClient, **query: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await http.get("/dead-letters", params=query)).json()["deadLetters"]
    return found


async def test_archived_ends_are_listed_shown_and_replayed_once(http: httpx.AsyncClient, engine: AsyncEngine) -> None:
    driver, devices = await lane_of(engine, 3)
    made = await used_up(engine, driver, *devices)
    await archived(engine, made)
    recent = await expired(engine, devices[0])
    entries = await listed(http, driver=driver)
    assert {each["commandId"]: each["commandStatus"] for each in entries} == dict.fromkeys(made, "DEAD") | {
        recent[0]: "EXPIRED"
    }
    shown = (await http.get(f"/dead-letters/{entries[-1]['id']}")).json()
    assert (shown["command"]["status"], [e["kind"] for e in shown["events"]]) == (
        "DEAD", ["STORED", "CLAIMED", "NOT_SENT"])  # fmt: skip
    numbers = [each["id"] for each in entries]
    tried = await http.post("/dead-letters/replay", json={"ids": numbers, "dryRun": True} | WHY, headers=KIM)
    assert tried.json()["replayed"] == 4
    assert await hot(engine, made) == 0, "a dry run moves nothing"
    body = {"ids": numbers, "expireIn": 60} | WHY
    answers = await asyncio.gather(*(http.post("/dead-letters/replay", json=body, headers=KIM) for _ in range(4)))
    assert sum(answer.json()["replayed"] for answer in answers) == 4
    assert await hot(engine, made) == 3
    assert set(await claimed(engine, driver)) <= {*made, *recent}
    await books_balance(engine)


async def test_a_refused_replay_is_archived_again(http: httpx.AsyncClient, engine: AsyncEngine) -> None:
    _, [device, other] = await lane_of(engine, 2)
    made = await expired(engine, device, point=UNLOCK)
    await archived(engine, made)
    [entry] = await listed(http)
    refused = await http.post(f"/dead-letters/{entry['id']}/replay", json=WHY, headers=KIM)
    assert refused.json()["code"] == "FORCE_NEEDED"
    assert await hot(engine, made) == 0
    await expired(engine, other)
    both = [each["id"] for each in await listed(http)]
    many = (await http.post("/dead-letters/replay", json={"ids": both} | WHY, headers=KIM)).json()
    assert [each["outcome"] for each in many["results"]] == ["replayed", "refused"]
    await archive(engine, ArchiveTerms(hot=timedelta(days=1), retention=WEEK, most=500))
    assert await hot(engine, made) == 0
    done = await http.post(f"/dead-letters/{entry['id']}/replay", json=WHY | {"force": True}, headers=KIM)
    assert done.json()["outcome"] == "replayed"


async def test_an_archived_newer_one_of_the_intent_stands_in_the_way(
    http: httpx.AsyncClient, engine: AsyncEngine
) -> None:
    driver, [device] = await lane_of(engine)
    await expired(engine, device, intent_key="room")
    newer = ids(await store(engine, submission(device, "2", intent_key="room")))
    assert await claimed(engine, driver) == newer
    await tell(engine, newer, K.SUCCESS)
    await archived(engine, newer)
    [entry] = await listed(http)
    refused = await http.post(f"/dead-letters/{entry['id']}/replay", json=WHY, headers=KIM)
    assert refused.json()["code"] == "INTENT_OVERTAKEN"
    assert newer[0] in refused.json()["detail"]


async def test_a_decided_review_stays_readable_and_of_an_archived_one_the_next_is_told(
    http: httpx.AsyncClient, engine: AsyncEngine
) -> None:
    driver, [device] = await lane_of(engine)
    [one] = await in_review(engine, driver, device)
    resolve = WHY | {"outcome": "SUCCESS"}
    assert (await http.post(f"/reviews/{one}/resolve", json=resolve, headers=KIM)).status_code == 200
    await archived(engine, [one])
    shown = (await http.get(f"/reviews/{one}")).json()
    assert (shown["open"], shown["decision"]["operator"], shown["command"]["status"]) == (False, "kim", "SUCCESS")
    second = await http.post(f"/reviews/{one}/resolve", json=resolve, headers={"X-Operator": "lee"})
    assert (second.json()["code"], "kim did that" in second.json()["detail"]) == ("NOT_IN_REVIEW", True)
    assert await hot(engine, [one]) == 0


async def test_a_stream_of_an_archived_command_has_its_lines_and_the_end(
    http: httpx.AsyncClient, engine: AsyncEngine
) -> None:
    driver, [device] = await lane_of(engine)
    [one] = await used_up(engine, driver, device)
    await archived(engine, [one])
    text = (await http.get(f"/commands/{one}/stream")).text
    names = [line.partition(": ")[2] for line in text.splitlines() if line.startswith("event: ")]
    assert names == ["line", "line", "line", "end"]


async def test_a_message_of_an_archived_command_is_evidence(http: httpx.AsyncClient, engine: AsyncEngine) -> None:
    driver, [device] = await lane_of(engine)
    done = ids(await store(engine, submission(device)))
    assert await claimed(engine, driver) == done
    await tell(engine, done, K.SUCCESS)
    await archived(engine, done)
    letter = Letter(
        body=b"x", queue="q", routing_key="k", reason="expired", tenant_id=1, command_id=done[0], attempt=1,
        listed_as="unknown_command", unless_known=True,
    )  # fmt: skip
    await store_letters(engine, [letter])
    assert await listed(http) == []


async def test_old_dead_letters_go_with_their_messages(http: httpx.AsyncClient, engine: AsyncEngine) -> None:
    driver, devices = await lane_of(engine, 2)
    made = await used_up(engine, driver, *devices)
    await store_letters(
        engine, [Letter(body=b"\xff", queue="q", routing_key="k", reason="rejected", listed_as="unreadable")]
    )
    await run(engine, "UPDATE dead_end SET at = at - interval '8 days' WHERE command_id IS DISTINCT FROM :c", c=made[1])
    await run(engine, "UPDATE dead_letter SET received_at = received_at - interval '8 days'")
    assert await drop_letters(engine, WEEK, most=500) == 2
    assert [each["commandId"] for each in await listed(http)] == [made[1]]
    assert await rows(engine, "SELECT id FROM dead_letter") == []
