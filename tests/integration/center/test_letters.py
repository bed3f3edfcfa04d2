"""Dead letters over HTTP on a real database: what is listed, and that each is replayed or discarded once."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from laneway_center.store.letters import Letter, store_letters
from laneway_shared.lifecycle import ResultKind as K
from support.doors import open_doors
from support.ended import claimed, expired, given_up, tell, timed_out, used_up
from support.lanes import lane_of
from support.stored import UNLOCK, beat, books_balance, ids, rows, run, store, submission

KIM, LEE = {"X-Operator": "kim"}, {"X-Operator": "lee"}
WHY = {"reason": "the door is repaired"}


@pytest.fixture(scope="module")
async def http(engine: AsyncEngine, database_url: str) -> AsyncIterator[httpx.AsyncClient]:
    async with open_doors(database_url) as client:
        yield client


async def listed(http: httpx.AsyncClient, **query: Any) -> list[dict[str, Any]]:
    answer = await http.get("/dead-letters", params={"limit": 500} | query)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["deadLetters"]
    return found


async def replay(http: httpx.AsyncClient, ids_: list[int], **body: Any) -> dict[str, Any]:
    answer = await http.post("/dead-letters/replay", json={"ids": ids_} | WHY | body, headers=KIM)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


DEATH = {
    "reason": "rejected",
    "queue": "dc3.q.point_command.gone",
    "count": 1,
    "exchange": "dc3.e.point_command",
    "routing-keys": ["dc3.r.point_command.gone"],
    "time": "2026-01-02T03:04:05+00:00",
}


def rubbish(n: int, **fields: Any) -> Letter:
    given: dict[str, Any] = {
        "body": b"\xff\x00 rubbish %d" % n,
        "queue": "dc3.q.point_command.gone",
        "routing_key": "dc3.r.point_command.gone",
        "reason": "rejected",
        "explanation": "is no JSON",
        "listed_as": "unreadable",
        "headers": {"x-death": [DEATH, "odd"]},
    }
    return Letter(**(given | fields))


async def test_all_kinds_are_listed_once_filtered_and_grouped(http: httpx.AsyncClient, engine: AsyncEngine) -> None:
    driver, devices = await lane_of(engine, 4)
    made = {
        "expired": await expired(engine, *devices[:3]),
        "attempts": await used_up(engine, driver, *devices[:2]),
        "rejected": await given_up(engine, driver, "rejected", devices[0]),
        "delivery_limit": await given_up(engine, driver, "delivery_limit", devices[1]),
        "timeout": await timed_out(engine, driver, devices[2]),
    }
    fine = ids(await store(engine, submission(devices[3])))
    assert await claimed(engine, driver) == fine
    await tell(engine, fine, K.SUCCESS)
    mine = await listed(http, driver=driver)
    by_reason: dict[str, set[str]] = {}
    for each in mine:
        by_reason.setdefault(each["reason"], set()).add(each["commandId"])
    assert by_reason == {reason: set(some) for reason, some in made.items()}
    assert [each["id"] for each in mine] == sorted((each["id"] for each in mine), reverse=True)
    [late] = [each for each in mine if each["reason"] == "timeout"]
    assert (late["endedAs"], late["errorCode"], late["deviceId"], late["state"], late["commandStatus"]) == (
        "TIMEOUT", "NO_ANSWER", devices[2], "open", "TIMEOUT")  # fmt: skip

    groups = (await http.get("/dead-letters/groups", params={"driver": driver})).json()
    assert groups["total"] == 8
    counted = [(g["reason"], g["errorCode"], g["count"]) for g in groups["groups"]]
    assert counted[:2] == [("expired", "DEADLINE", 3), ("attempts", "MQTT_AWAY", 2)]
    assert {"rejected", "delivery_limit", "timeout"} == {reason for reason, _, _ in counted[2:]}

    filters: list[tuple[dict[str, Any], set[str]]] = [
        ({"deviceId": devices[2]}, {"expired", "timeout"}),
        ({"status": "DEAD"}, {"attempts", "rejected", "delivery_limit"}),
        ({"status": ["EXPIRED", "TIMEOUT"]}, {"expired", "timeout"}),
        ({"reason": ["rejected", "timeout"]}, {"rejected", "timeout"}),
        ({"errorCode": "MQTT_AWAY"}, {"attempts"}),
        ({"commandId": made["timeout"][0]}, {"timeout"}),
        ({"from": late["at"]}, {"timeout"}),
        ({"to": late["at"]}, set(made) - {"timeout"}),
        ({"kind": "command"}, set(made)),
        ({"kind": "message"}, set()),
        ({"state": ["replayed", "discarded"]}, set()),
    ]
    for query, reasons in filters:
        assert {each["reason"] for each in await listed(http, driver=driver, **query)} == reasons, query
    assert await listed(http, driver="another") == []
    foreign = await http.get("/dead-letters", headers={"X-Tenant-Id": "2"})
    assert foreign.json()["deadLetters"] == []


async def test_pages_hold_each_once_and_a_cursor_by_hand_is_refused(
    http: httpx.AsyncClient, engine: AsyncEngine
) -> None:
    driver, devices = await lane_of(engine, 25)
    await expired(engine, *devices)
    seen: list[int] = []
    cursor: dict[str, str] = {}
    while True:
        query: dict[str, Any] = {"driver": driver, "limit": 10} | cursor
        page = (await http.get("/dead-letters", params=query)).json()
        seen += [each["id"] for each in page["deadLetters"]]
        if page["nextCursor"] is None:
            break
        cursor = {"cursor": page["nextCursor"]}
    assert len(seen) == len(set(seen)) == 25
    assert seen == sorted(seen, reverse=True)
    for bad in ("1", "x_1", "2026-01-01T00:00:00_1", "2026-13-01T00:00:00+00:00_1", "-_1"):
        answer = await http.get("/dead-letters", params={"cursor": bad})
        assert (answer.status_code, answer.json()["code"]) == (422, "VALIDATION"), bad


async def test_one_letter_shows_messages_deaths_command_and_attempts(
    http: httpx.AsyncClient, engine: AsyncEngine
) -> None:
    driver, [device] = await lane_of(engine)
    [one] = await given_up(engine, driver, "rejected", device)
    body = b'{"commandId":"%s"}' % one.encode()
    letter = rubbish(
        1, body=body, tenant_id=1, command_id=one, attempt=1, listed_as="unknown_command", unless_known=True
    )
    await store_letters(engine, [letter, letter])
    [entry] = await listed(http, driver=driver)
    shown = (await http.get(f"/dead-letters/{entry['id']}")).json()
    assert {key: shown[key] for key in entry} == entry
    assert (shown["command"]["commandId"], shown["command"]["status"]) == (one, "DEAD")
    assert [(e["kind"], e["to"]) for e in shown["events"]][-1] == ("DUE", "DEAD")
    [message] = shown["letters"]
    assert (message["body"], message["bodyEncoding"], message["bodyBytes"], message["bodyCut"]) == (
        body.decode(), "text", len(body), False)  # fmt: skip
    keys = DEATH["routing-keys"]
    assert message["xDeath"] == [{k: v for k, v in DEATH.items() if k != "routing-keys"} | {"routingKeys": keys}]
    for unknown in ("0", "999999999", "x", "9" * 30, "-1", "٣"):
        answer = await http.get(f"/dead-letters/{unknown}")
        assert (answer.status_code, answer.json()["code"]) == (404, "LETTER_UNKNOWN"), unknown


async def test_rubbish_is_listed_shown_and_can_only_be_discarded(http: httpx.AsyncClient, engine: AsyncEngine) -> None:
    long = rubbish(2, body="€".encode() * 40_000, driver="gone", headers={"x-death": "odd"})
    await store_letters(engine, [long, rubbish(3, driver="gone"), rubbish(3, driver="gone")])
    found = await listed(http, driver="gone")
    assert [(each["kind"], each["reason"], each["commandId"]) for each in found] == [
        ("message", "unreadable", None)
    ] * 2
    short, cut = [(await http.get(f"/dead-letters/{each['id']}")).json() for each in found]
    assert (short["letters"][0]["bodyEncoding"], short["command"], short["events"]) == ("base64", None, [])
    [message] = cut["letters"]
    assert (message["bodyEncoding"], message["bodyBytes"], message["bodyCut"]) == ("text", 120_000, True)
    assert set(message["body"]) == {"€"}
    assert message["xDeath"] == []
    numbers = [each["id"] for each in found]
    refused = await http.post(f"/dead-letters/{numbers[0]}/replay", json=WHY, headers=KIM)
    assert (refused.status_code, refused.json()["code"]) == (409, "MESSAGE_NOT_REPLAYABLE")
    tried = await http.post("/dead-letters/discard", json={"ids": numbers, "dryRun": True} | WHY, headers=KIM)
    assert [each["outcome"] for each in tried.json()["results"]] == ["would_discard"] * 2
    done = (await http.post("/dead-letters/discard", json={"ids": [*numbers, 10**12]} | WHY, headers=KIM)).json()
    assert [each["outcome"] for each in done["results"]] == ["discarded", "discarded", "refused"]
    assert (done["discarded"], done["refused"]) == (2, 1)
    again = await http.post(f"/dead-letters/{numbers[0]}/discard", json=WHY, headers=LEE)
    assert (again.status_code, again.json()["code"]) == (409, "ALREADY_DISCARDED")
    assert "by kim at" in again.json()["detail"]
    assert await listed(http, driver="gone") == []
    handled = await listed(http, driver="gone", state="discarded")
    assert [(each["handledBy"], each["handledWhy"]) for each in handled] == [("kim", WHY["reason"])] * 2


async def test_a_message_of_a_known_command_is_evidence_of_an_unknown_one_a_letter(
    http: httpx.AsyncClient, engine: AsyncEngine
) -> None:
    driver, [device] = await lane_of(engine)
    [known] = ids(await store(engine, submission(device)))
    stranger = "0190c3e2-7b1c-7000-8000-3f2a9d5c1e77"
    as_recorded: dict[str, Any] = {"listed_as": "unknown_command", "unless_known": True, "driver": driver}
    await store_letters(
        engine,
        [
            rubbish(4, tenant_id=1, command_id=known, attempt=1, **as_recorded),
            rubbish(5, tenant_id=1, command_id=stranger, attempt=1, device_id=device, **as_recorded),
            rubbish(6, tenant_id=1, command_id=stranger, attempt=1, driver=driver, listed_as=None),
        ],
    )
    [entry] = await listed(http, driver=driver)
    assert (entry["kind"], entry["reason"], entry["commandId"]) == ("message", "unknown_command", stranger)
    assert entry["deviceId"] == device


async def test_a_replay_is_a_new_attempt_with_a_new_place_and_says_so(
    http: httpx.AsyncClient, engine: AsyncEngine
) -> None:
    driver, [device] = await lane_of(engine)
    [one] = await used_up(engine, driver, device)
    [entry] = await listed(http, driver=driver)
    path, body = f"/dead-letters/{entry['id']}/replay", WHY | {"expireIn": 30}
    tried = (await http.post(path, json=body | {"dryRun": True}, headers=KIM)).json()
    assert (tried["outcome"], tried["seq"], tried["command"]["status"]) == ("would_replay", None, "DEAD")
    assert [each["id"] for each in await listed(http, driver=driver)] == [entry["id"]], "nothing was changed"
    done = (await http.post(path, json=body, headers=KIM)).json()
    assert (done["outcome"], done["commandId"], done["previousSeq"], done["seq"], done["nextAttempt"]) == (
        "replayed", one, 1, 2, 2)  # fmt: skip
    assert (done["command"]["status"], done["command"]["seq"], done["warnings"]) == ("PENDING", 2, [])
    assert await claimed(engine, driver) == [one]
    await tell(engine, [one], K.NOT_SENT, attempt=2)
    again = await http.post(path, json=body, headers=LEE)
    assert (again.status_code, again.json()["code"]) == (409, "ALREADY_REPLAYED"), "of that end, not of the new one"
    assert "by kim at" in again.json()["detail"]
    [newer] = await listed(http, driver=driver)
    assert newer["id"] > entry["id"]
    assert newer["attempt"] == 2
    events = (await http.get(f"/commands/{one}/events")).json()["events"]
    [line] = [each for each in events if each["kind"] == "REPLAYED"]
    assert line["note"] == "sent again by an operator, as attempt 2, at place 2 of its lane"
    assert line["detail"] == {"by": "kim", "why": WHY["reason"]}
    acts = (await http.get("/audit", params={"subject": entry["id"]})).json()["actions"]
    assert [(act["operator"], act["action"], act["why"]) for act in acts] == [("kim", "letter.replay", WHY["reason"])]
    assert (acts[0]["before"]["status"], acts[0]["after"]["status"], acts[0]["after"]["seq"]) == ("DEAD", "PENDING", 2)
    await books_balance(engine)


async def test_three_hundred_by_filter_the_rest_untouched_and_a_second_time_nothing(
    http: httpx.AsyncClient, engine: AsyncEngine
) -> None:
    driver, devices = await lane_of(engine, 40)
    for _ in range(8):
        await expired(engine, *devices)
    others = await used_up(engine, driver, *devices)
    chosen = [each["id"] for each in await listed(http, driver=driver, reason="expired")]
    assert len(chosen) == 320
    for at in range(0, 320, 100):
        part = chosen[at : at + 100]
        done = await replay(http, part, expireIn=60)
        assert (done["replayed"], done["refused"]) == (len(part), 0)
    assert await listed(http, driver=driver, reason="expired") == []
    again = await replay(http, chosen[:100])
    assert (again["replayed"], again["refused"]) == (0, 100)
    assert {each["problem"]["code"] for each in again["results"]} == {"ALREADY_REPLAYED"}
    assert {each["commandId"] for each in await listed(http, driver=driver)} == set(others)
    await books_balance(engine)
    for _ in range(8):
        sent = await claimed(engine, driver)
        assert len(sent) == 40
        await tell(engine, sent, K.SUCCESS)
    assert await claimed(engine, driver) == []
    statuses = await rows(engine, "SELECT status, count(*) FROM point_command WHERE driver = :d GROUP BY 1", d=driver)
    assert dict(tuple(row) for row in statuses) == {"SUCCESS": 320, "DEAD": 40}


async def test_interrupted_and_sent_again_or_twice_at_once_none_goes_twice(
    http: httpx.AsyncClient, engine: AsyncEngine
) -> None:
    driver, devices = await lane_of(engine, 30)
    made = await expired(engine, *devices)
    chosen = [each["id"] for each in await listed(http, driver=driver)]
    # the first ten went through, but the client was interrupted; then three clients at once send all of them
    await replay(http, chosen[:10])
    answers = await asyncio.gather(*(replay(http, part) for part in (chosen, chosen[::-1], chosen[5:] + chosen[:5])))
    assert sum(answer["replayed"] for answer in answers) == 20
    per_id = [each["id"] for answer in answers for each in answer["results"] if each["outcome"] == "replayed"]
    assert sorted(per_id) == sorted(set(chosen) - set(chosen[:10]))
    lines = await rows(engine, "SELECT count(*) FROM point_command_event e JOIN point_command c ON c.id = e.command_pk"
                       " WHERE c.driver = :d AND e.kind = 'REPLAYED'", d=driver)  # fmt: skip
    acts = await rows(
        engine, "SELECT count(*) FROM operator_action WHERE subject = ANY(:s)", s=[str(i) for i in chosen]
    )
    assert (lines[0][0], acts[0][0]) == (30, 30)
    assert set(await claimed(engine, driver)) == set(made)
    await books_balance(engine)


async def test_replayed_and_discarded_at_once_one_of_both(http: httpx.AsyncClient, engine: AsyncEngine) -> None:
    driver, devices = await lane_of(engine, 20)
    await expired(engine, *devices)
    chosen = [each["id"] for each in await listed(http, driver=driver)]
    body = {"ids": chosen} | WHY
    replayed, discarded = await asyncio.gather(
        http.post("/dead-letters/replay", json=body, headers=KIM),
        http.post("/dead-letters/discard", json=body, headers=LEE),
    )
    assert replayed.json()["replayed"] + discarded.json()["discarded"] == 20
    pending = await rows(
        engine, "SELECT count(*) FROM point_command WHERE driver = :d AND status = 'PENDING'", d=driver
    )
    assert pending[0][0] == replayed.json()["replayed"]


async def test_the_same_id_twice_an_unknown_one_and_anothers_tenant(
    http: httpx.AsyncClient, engine: AsyncEngine
) -> None:
    driver, [device] = await lane_of(engine)
    await expired(engine, device)
    [entry] = await listed(http, driver=driver)
    for dry in (True, False):
        done = await replay(http, [entry["id"], entry["id"], 10**12], dryRun=dry)
        assert [each["outcome"] for each in done["results"]] == ["would_replay" if dry else "replayed"] + [
            "refused"
        ] * 2
        assert [each["problem"]["code"] for each in done["results"][1:]] == ["ALREADY_REPLAYED", "LETTER_UNKNOWN"]
    foreign = KIM | {"X-Tenant-Id": "2"}
    answer = await http.post(f"/dead-letters/{entry['id']}/replay", json=WHY, headers=foreign)
    assert (answer.status_code, answer.json()["code"]) == (404, "LETTER_UNKNOWN")


async def test_unsafe_and_expired_needs_force(http: httpx.AsyncClient, engine: AsyncEngine) -> None:
    driver, devices = await lane_of(engine, 2)
    await expired(engine, devices[0], point=UNLOCK)
    await expired(engine, devices[1])
    unlock, level = sorted(each["id"] for each in await listed(http, driver=driver))
    done = await replay(http, [unlock, level])
    assert [each["outcome"] for each in done["results"]] == ["refused", "replayed"]
    assert done["results"][0]["problem"]["code"] == "FORCE_NEEDED"
    assert (await replay(http, [unlock], force=True))["replayed"] == 1


async def test_a_newer_command_of_the_same_intent_stands_in_the_way(
    http: httpx.AsyncClient, engine: AsyncEngine
) -> None:
    driver, devices = await lane_of(engine, 3)
    await expired(engine, *devices, intent_key="room 12")
    numbers = sorted(each["id"] for each in await listed(http, driver=driver))
    waiting = submission(devices[0], "2", intent_key="room 12")
    done, other = submission(devices[1], "2", intent_key="room 12"), submission(devices[2], "2", intent_key="room 13")
    await store(engine, waiting, done, other)
    await tell(engine, [each for each in await claimed(engine, driver) if each == done.command_id], K.SUCCESS)
    results = (await replay(http, numbers, dryRun=True))["results"]
    assert [each["outcome"] for each in results] == ["refused", "refused", "would_replay"]
    assert {each["problem"]["code"] for each in results[:2]} == {"INTENT_OVERTAKEN"}
    assert waiting.command_id in results[0]["problem"]["detail"]
    assert "is SUCCESS" in results[1]["problem"]["detail"]
    await run(engine, "UPDATE point_command SET status = 'CANCELLED' WHERE command_id = :c", c=done.command_id)
    assert (await replay(http, [numbers[1]]))["replayed"] == 1, "a cancelled one overtakes nothing"
    assert (await replay(http, [numbers[0]], force=True))["replayed"] == 1


async def test_a_driver_that_is_away_is_a_warning(http: httpx.AsyncClient, engine: AsyncEngine) -> None:
    driver, devices = await lane_of(engine, 2)
    await expired(engine, *devices)
    numbers = [each["id"] for each in await listed(http, driver=driver)]
    await beat(engine, driver, state="offline")
    [warning] = (await replay(http, numbers, dryRun=True))["results"][0]["warnings"]
    assert warning == f"driver {driver} has no live instance; it waits for one until its deadline"
    await run(engine, "UPDATE device SET enabled = false WHERE driver = :d", d=driver)
    assert "disabled" in (await replay(http, numbers))["results"][0]["warnings"][0]


async def test_a_device_that_left_its_lane_takes_no_old_command_along(
    http: httpx.AsyncClient, engine: AsyncEngine
) -> None:
    driver, [device] = await lane_of(engine)
    await expired(engine, device)
    [entry] = await listed(http, driver=driver)
    await run(engine, "UPDATE device SET lane_key = 'elsewhere' WHERE device_id = :d", d=device)
    [result] = (await replay(http, [entry["id"]]))["results"]
    assert result["problem"]["code"] == "NOT_REPLAYABLE"
    assert "another lane" in result["problem"]["detail"]


@pytest.mark.parametrize(
    ("headers", "body", "code"),
    [
        ({}, WHY, "OPERATOR_MISSING"),
        ({"X-Operator": " "}, WHY, "OPERATOR_MISSING"),
        ({"X-Operator": "k" * 65}, WHY, "OPERATOR_MISSING"),
        ({"X-Operator": "k\tk"}, WHY, "OPERATOR_MISSING"),
        (KIM, {}, "VALIDATION"),
        (KIM, {"reason": "  "}, "VALIDATION"),
        (KIM, {"reason": "x" * 501}, "VALIDATION"),
        (KIM, {"reason": "\x00"}, "VALIDATION"),
        (KIM, WHY | {"expireIn": 0}, "VALIDATION"),
        (KIM, WHY | {"expireIn": "30"}, "VALIDATION"),
        (KIM, WHY | {"expireIn": 100_000}, "DEADLINE_TOO_FAR"),
        (KIM, WHY | {"colour": "red"}, "VALIDATION"),
    ],
)
async def test_who_and_why_are_needed(
    http: httpx.AsyncClient, headers: dict[str, str], body: dict[str, Any], code: str
) -> None:
    for path, ids_ in (("/dead-letters/1/replay", {}), ("/dead-letters/replay", {"ids": [1]})):
        answer = await http.post(path, json=body | ids_, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (422, code), answer.text


async def test_a_name_may_be_in_any_language(http: httpx.AsyncClient, engine: AsyncEngine) -> None:
    driver, [device] = await lane_of(engine)
    await expired(engine, device)
    [entry] = await listed(http, driver=driver)
    headers = {b"X-Operator": "张三".encode()}
    answer = await http.post(f"/dead-letters/{entry['id']}/discard", json={"reason": "不需要"}, headers=headers)
    assert answer.status_code == 200
    [act] = (await http.get("/audit", params={"operator": "张三"})).json()["actions"]
    assert (act["action"], act["why"], act["after"]["state"]) == ("letter.discard", "不需要", "discarded")


async def test_the_audit_is_filtered_and_paged(http: httpx.AsyncClient, engine: AsyncEngine) -> None:
    driver, devices = await lane_of(engine, 7)
    await expired(engine, *devices)
    numbers = [each["id"] for each in await listed(http, driver=driver)]
    who = {"X-Operator": f"night {driver}"}
    await http.post("/dead-letters/discard", json={"ids": numbers[:4]} | WHY, headers=who)
    await http.post("/dead-letters/replay", json={"ids": numbers[4:]} | WHY, headers=who)
    seen: list[dict[str, Any]] = []
    query: dict[str, Any] = {"operator": who["X-Operator"], "limit": 3}
    while True:
        page = (await http.get("/audit", params=query)).json()
        seen += page["actions"]
        if page["nextCursor"] is None:
            break
        query["cursor"] = page["nextCursor"]
    assert [act["action"] for act in seen] == ["letter.replay"] * 3 + ["letter.discard"] * 4
    assert {act["subject"] for act in seen} == {str(number) for number in numbers}
    assert [act["id"] for act in seen] == sorted((act["id"] for act in seen), reverse=True)
    only = (await http.get("/audit", params={"operator": who["X-Operator"], "action": "letter.replay"})).json()
    assert len(only["actions"]) == 3
    before = (await http.get("/audit", params={"operator": who["X-Operator"], "to": seen[-1]["at"]})).json()
    assert before["actions"] == []
    foreign = await http.get("/audit", params={"operator": who["X-Operator"]}, headers={"X-Tenant-Id": "2"})
    assert foreign.json()["actions"] == []
