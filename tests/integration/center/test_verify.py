"""`laneway verify` on a real PostgreSQL: a history made by the store's own functions, and rows changed by hand."""

import asyncio
import json
import os
import re
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiomqtt
import httpx
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from laneway_center.store import migrate
from laneway_center.store.actions import Operator
from laneway_center.store.claims import ClaimTerms, claim, confirm_sent
from laneway_center.store.database import open_engine
from laneway_center.store.evidence import Item, JudgeTerms, apply
from laneway_center.store.lanes import hold_lane, release_lane, skip_head
from laneway_center.store.locked_rows import Subject
from laneway_center.store.operators import Again, resolve, send_again
from laneway_center.store.withdrawals import cancel
from laneway_center.verify.findings import Terms
from laneway_center.verify.journals import from_file
from laneway_center.verify.rules import RULES, check
from laneway_center.verify.snapshot import load
from laneway_local.services import Service, script
from laneway_local.stack import Stack
from laneway_shared.judgement import Evidence, Policy
from laneway_shared.lifecycle import ResultKind, Status
from support.stored import UNLOCK, ids, register, rows, run, store, submission

K = ResultKind
LIMIT_S = 30.0  # bound of every wait
GRACE = timedelta(seconds=5)
TERMS = ClaimTerms(by="test", window_ms=10_000, grace_ms=5_000, most=100)
AT_ONCE = JudgeTerms(grace=GRACE, policy=Policy(base=timedelta()), chance=lambda: 0.0)
SIMULATOR = Service(name="simulator-verified", command=("laneway-simulator",), serves_http=True)
DEVICE, OTHER = 1, 2
SOMEBODY = Operator(name="tester", why="to see")


class Plant:
    """A database with two devices, whose journal is a file as the virtual adapter writes it."""

    def __init__(self, engine: AsyncEngine, url: str, journal: Path) -> None:
        self.engine, self.url, self.journal = engine, url, journal

    async def submit(self, *values: str, device: int = DEVICE, **fields: Any) -> list[str]:
        return ids(await store(self.engine, *(submission(device, value, **fields) for value in values)))

    async def send(self) -> str:
        """Claim and confirm the only head there is."""
        [row] = await claim(self.engine, "virtual", room=100, profiles=[], terms=TERMS)
        await confirm_sent(self.engine, [(row["id"], row["attempt"])])
        return str(row["command_id"])

    def act(self, command_id: str, attempt: int = 1, *, device: int = DEVICE, **wrong: Any) -> None:
        entry = {
            "at": datetime.now(UTC).isoformat(),
            "deviceSn": f"SN{device}",
            "point": "level",
            "type": "WRITE",
            "value": "1",
            "commandId": command_id,
            "attempt": attempt,
            "event": "executed",
        }
        with self.journal.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry | wrong) + "\n")

    async def tell(self, command_id: str, kind: ResultKind, attempt: int | None = 1, **said: Any) -> None:
        subject = Subject(tenant_id=1, command_id=command_id)
        item = Item(subject=subject, evidence=Evidence(kind=kind, attempt=attempt, **said))
        assert (await apply(self.engine, [item], AT_ONCE)).orphans == ()

    async def now(self) -> datetime:
        """The database's clock: absence is judged by it."""
        moment: datetime = (await rows(self.engine, "SELECT clock_timestamp() AS now"))[0].now
        return moment

    async def done(self, attempt: int = 1) -> str:
        command_id = await self.send()
        self.act(command_id, attempt)
        await self.tell(command_id, K.SUCCESS, attempt)
        return command_id

    async def live(self) -> None:
        """A day in the life of both devices; some commands are still on their way at its end."""
        await self.submit("1", "2")
        await self.done()
        retried = await self.send()
        await self.tell(retried, K.NOT_SENT)
        await self.done(attempt=2)
        [unlock] = await self.submit("1", point=UNLOCK)
        await self.send()
        await self.tell(unlock, K.STARTED)
        self.act(unlock)
        await run(self.engine, "UPDATE point_command SET quiet_at = now() WHERE command_id = :c", c=unlock)
        await self.tell(unlock, K.DUE, at=await self.now())
        subject = Subject(tenant_id=1, command_id=unlock)
        await send_again(self.engine, subject, SOMEBODY, Again(expire_in=timedelta(minutes=1), grace=GRACE))
        await self.done(attempt=2)
        await self.submit("3", "4")
        await self.tell(await self.send(), K.TRANSMITTED)

    async def verify(self, *arguments: str, **environment: str) -> tuple[int, str, str]:
        """Exit code and what was said, with this plant's database and journal."""
        return await laneway("verify", *self.sources, *arguments, **environment)

    @property
    def sources(self) -> tuple[str, ...]:
        return ("--database-url", self.url, "--journal", str(self.journal))

    async def broken(self, tenant: int | None = None) -> dict[str, int]:
        """Findings by broken rule."""
        facts = await load(self.engine, tenant, lambda *_: None)
        facts = replace(facts, journals=(from_file(self.journal, lambda *_: None),))
        return {name: len(found) for name, found in check(facts, Terms()).items() if found}


async def laneway(*arguments: str, **environment: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        script("laneway"),
        *arguments,
        env={**os.environ, **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(LIMIT_S):
        out, errors = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), errors.decode()


@pytest.fixture
async def plant(new_database: Callable[[], str], tmp_path: Path) -> AsyncIterator[Plant]:
    url = new_database()
    engine = open_engine(url, size=4, name="tests")
    await migrate.upgrade(engine)
    await register(engine, [DEVICE, OTHER], driver="virtual")
    journal = tmp_path / "journal.ndjson"
    journal.touch()
    yield Plant(engine, url, journal)
    await engine.dispose()


async def test_what_the_store_makes_is_sound(plant: Plant) -> None:
    assert await plant.broken() == {}, "nothing happened yet"
    await plant.live()
    assert await plant.broken() == {}
    code, said, errors = await plant.verify()
    assert (code, errors) == (0, "")
    assert said.strip().endswith("Sound.")
    assert re.search(r"^commands +5 +PENDING 1, AWAITING_ACK 1, SUCCESS 3 *$", said, re.MULTILINE)
    code, said, _ = await plant.verify("--tenant", "1", "--output", "json")
    document = json.loads(said)
    assert (code, document["sound"], document["commands"]["count"]) == (0, True, 5)
    assert document["journals"][0]["executions"] == 4
    assert {rule["verdict"] for rule in document["rules"]} == {"ok"}


async def test_the_table_fits_a_terminal_of_80_columns(plant: Plant) -> None:
    await plant.live()
    await run(plant.engine, TAMPERED["lane_books"])
    code, said, _ = await plant.verify(COLUMNS="80")
    assert (code, said.split()[-2:]) == (1, ["1", "finding."])
    assert max(map(len, said.splitlines())) <= 80
    assert "\x1b" not in said


async def test_a_resolved_review_needs_no_execution(plant: Plant) -> None:
    await plant.submit("1")
    await plant.done()
    [unlock] = await plant.submit("1", point=UNLOCK)
    await plant.send()
    await plant.tell(unlock, K.STARTED)
    await run(plant.engine, "UPDATE point_command SET quiet_at = now() WHERE command_id = :c", c=unlock)
    await plant.tell(unlock, K.DUE, at=await plant.now())
    await resolve(plant.engine, Subject(tenant_id=1, command_id=unlock), SOMEBODY, Status.SUCCESS, grace=GRACE)
    assert await plant.broken() == {}


TAMPERED = {
    "ended": "UPDATE point_command SET expire_at = now() - interval '16 s' WHERE status = 'PENDING'",
    "one_in_flight": """
        INSERT INTO point_command_event (command_pk, at, from_status, to_status, attempt, kind, note)
        SELECT c.id, now(), s.was, s.becomes, 0, 'CLAIMED_BY_HAND', 'by hand'
        FROM point_command c,
             (VALUES (1, 'PENDING', 'DISPATCHING'), (2, 'DISPATCHING', 'RETRY_WAIT')) AS s(n, was, becomes)
        WHERE c.status = 'PENDING' ORDER BY s.n;
        UPDATE point_command SET status = 'RETRY_WAIT', next_visible_at = now(), retry = 'relaxed'
        WHERE status = 'PENDING'
        """,
    "lane_books": "UPDATE lane SET depth = depth + 1 WHERE depth > 0",
    "claimed_once": """UPDATE point_command_event SET detail = jsonb_set(detail, '{laneToken}', '1')
        WHERE kind = 'CLAIMED' AND detail ->> 'laneToken' = '3'""",
    "in_window": """UPDATE point_command_event SET detail = jsonb_set(detail, '{startBy}', '"2020-01-01T00:00:00Z"')
        WHERE kind = 'CLAIMED' AND detail ->> 'laneToken' = '1'""",
}


@pytest.mark.parametrize("rule", TAMPERED)
async def test_rows_changed_by_hand_are_found(plant: Plant, rule: str) -> None:
    await plant.live()
    for statement in TAMPERED[rule].split(";"):
        await run(plant.engine, statement)
    assert await plant.broken() == {rule: 1}
    assert await plant.broken(tenant=7) == {}, "another tenant's"


async def acted_upon(plant: Plant) -> None:
    """Holds, releases, revocations, merges, cancels and skips."""
    lane = f"device:{DEVICE}"
    [first] = await plant.submit("1", intent_key="face:1")
    await hold_lane(plant.engine, 1, lane, SOMEBODY)
    await plant.submit("2", purpose="revoke", intent_key="face:1")
    await plant.submit("3", "4", merge="latest", intent_key="volume")
    [gone] = await plant.submit("5")
    await cancel(plant.engine, Subject(tenant_id=1, command_id=gone), grace=GRACE)
    assert await claim(plant.engine, "virtual", room=9, profiles=[], terms=TERMS) == []
    await release_lane(plant.engine, 1, lane, SOMEBODY)
    await plant.done()
    await plant.submit("6", priority=4)
    await skip_head(plant.engine, 1, lane, SOMEBODY, grace=GRACE, ageing_s=60)
    await plant.done()
    await plant.done()
    [row] = await rows(plant.engine, "SELECT status FROM point_command WHERE command_id = :c", c=first)
    assert row.status == "SUPERSEDED"


ACTED_AGAINST = {
    "held": "UPDATE operator_action SET after = jsonb_set(after, '{token}', '1') WHERE action = 'lane.release'",
    "withdrawn": "UPDATE point_command SET intent_key = 'face:2' WHERE error_code = 'REVOKED'",
    "lane_order": "UPDATE point_command_event SET kind = 'NOTED' WHERE kind = 'SKIPPED'",
    "intents": """WITH last AS (
          UPDATE point_command SET intent_key = 'volume' WHERE request_value = '6' RETURNING id)
        UPDATE point_command_event SET detail = '{"merge": "latest"}'
        WHERE kind = 'STORED' AND command_pk = (SELECT id FROM last)""",
}


@pytest.mark.parametrize("rule", ["", *ACTED_AGAINST])
async def test_what_operators_and_intents_do_is_sound_and_rows_changed_by_hand_are_found(
    plant: Plant, rule: str
) -> None:
    await acted_upon(plant)
    if rule:
        await run(plant.engine, ACTED_AGAINST[rule])
    found = await plant.broken()
    assert set(found) == ({rule} if rule else set()), found


async def test_a_change_that_nobody_may_make_is_found(plant: Plant) -> None:
    await plant.submit("1")
    await plant.done()
    last = "(SELECT max(id) FROM point_command_event)"
    await run(plant.engine, f"UPDATE point_command_event SET from_status = 'FAILED' WHERE id = {last}")
    code, said, _ = await plant.verify()
    assert code == 1
    assert "an event starts from FAILED, but it was SENT" in " ".join(said.split())
    assert said.endswith("\n1 finding.\n")


async def test_what_devices_did_is_held_against_the_tables(plant: Plant) -> None:
    first, second = await plant.submit("1", "2")
    unlock, forgotten, expired = await plant.submit("1", "2", "3", device=OTHER, point=UNLOCK)
    plant.act(str(uuid.uuid4()), at="2026-01-01T00:00:00Z")
    for sent in await claim(plant.engine, "virtual", room=9, profiles=[], terms=TERMS):
        await plant.tell(str(sent["command_id"]), K.SUCCESS)
    [row, last] = await claim(plant.engine, "virtual", room=9, profiles=[], terms=TERMS)
    assert {str(row["command_id"]), str(last["command_id"])} == {second, forgotten}
    plant.act(second)
    plant.act(first)
    plant.act(unlock, device=OTHER)
    plant.act(unlock, device=OTHER)
    await plant.tell(second, K.SUCCESS)
    await plant.tell(forgotten, K.SUCCESS)
    await run(plant.engine, "UPDATE point_command SET expire_at = now() WHERE command_id = :c", c=expired)
    await plant.tell(expired, K.DUE, 0, at=await plant.now())
    plant.act(expired, 0, device=OTHER, at="2026-01-01T00:00:00Z")
    with plant.journal.open("a") as file:
        file.write('{"at":"2026-01-01T00:0')  # still being written
    assert await plant.broken() == {
        "order": 1,
        "unsafe_once": 1,
        "in_window": 1,
        "success_executed": 1,
        "expired_not_executed": 1,
        "stranger": 1,
    }
    code, said, _ = await plant.verify("--most", "0")
    assert code == 1
    assert "order: 1 found, 0 shown" in said


async def test_without_a_journal_the_tables_alone_are_judged(plant: Plant) -> None:
    await plant.live()
    code, said, _ = await laneway("verify", LANEWAY_DATABASE_URL=plant.url, COLUMNS="")
    assert code == 0
    assert said.count("no journal") == 7
    assert all(line == line.rstrip() for line in said.splitlines())
    assert len(said.splitlines()) == 4 + 1 + len(RULES) + 2, "in a pipe nothing is folded"


# ------------------------------------------------------------------------------- a real simulator


@pytest.fixture(scope="module")
def simulator(infra: Stack) -> Iterator[str]:
    infra.start_service(SIMULATOR, LANEWAY_SIMULATOR_LATENCY_MIN_MS="0", LANEWAY_SIMULATOR_LATENCY_MAX_MS="5")
    yield infra.service_url(SIMULATOR.name)
    infra.stop_service(SIMULATOR.name)


async def executions(url: str, sn: str, count: int) -> None:
    """Wait until the lock has done so much."""
    async with httpx.AsyncClient(base_url=url, trust_env=False) as http, asyncio.timeout(LIMIT_S):
        while len((await http.get(f"/devices/{sn}/journal?event=executed")).json()["entries"]) < count:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.02)


async def test_a_simulators_journal_counts(plant: Plant, simulator: str, mqtt_url: str) -> None:
    sn = f"V-{uuid.uuid4().hex[:12]}"
    await run(plant.engine, "UPDATE device SET device_sn = :sn WHERE device_id = :d", sn=sn, d=DEVICE)
    [unlock] = await plant.submit("1", point=UNLOCK)
    await plant.send()
    message: dict[str, Any] = {"msgId": f"{unlock}.1", "cmd": "unlock", "op": "write", "value": "1"}
    message |= {"validUntil": int(time.time() * 1000) + 60_000}
    broker = urlsplit(mqtt_url)
    arguments = ("verify", "--database-url", plant.url, "--simulator", simulator, "--output", "json")
    async with aiomqtt.Client(broker.hostname or "", broker.port or 1883, identifier=f"test-{uuid.uuid4()}") as client:
        await client.publish(f"ydlink/{sn}/down", json.dumps(message).encode())
        await executions(simulator, sn, 1)
        await plant.tell(unlock, K.SUCCESS)
        code, said, _ = await laneway(*arguments)
        assert (code, json.loads(said)["journals"][0]["executions"] > 0) == (0, True)

        await client.publish(f"ydlink/{sn}/down", json.dumps(message).encode())
        await executions(simulator, sn, 2)
    code, said, _ = await laneway(*arguments)
    assert (code, [rule["name"] for rule in json.loads(said)["rules"] if rule["count"]]) == (1, ["unsafe_once"])


# ------------------------------------------------------------------------------------ exit codes


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--slack", "-1"], 2, "--slack"),
        (["--database-url", "nonsense"], 2, "no URL"),
        (["--database-url", "mysql://localhost/x"], 2, "not of postgresql"),
        (["--journal", "there-is-none"], 2, "does not exist"),
        (["--simulator", "localhost:1"], 2, "http://"),
        (["--simulator", "http://127.0.0.1:1"], 3, "can't be reached"),
        (["--database-url", "postgresql://127.0.0.1:1/x"], 3, "PostgreSQL at 127.0.0.1:1 can't be reached"),
    ],
)
async def test_what_cant_be_judged_is_said_in_a_line(plant: Plant, arguments: list[str], code: int, says: str) -> None:
    ended, said, errors = await plant.verify(*arguments)
    assert (ended, said) == (code, "")
    assert says in errors.splitlines()[-1]
    assert "Traceback" not in errors


async def test_a_database_that_refuses_is_told_from_one_that_is_away(
    plant: Plant, new_database: Callable[[], str]
) -> None:
    code, _, errors = await laneway("verify", LANEWAY_DATABASE_URL=new_database())
    assert (code, errors.count("\n")) == (3, 1)
    assert "laneway-center migrate" in errors
    code, _, errors = await laneway("verify", LANEWAY_DATABASE_URL=f"{plant.url}_missing")
    assert (code, errors.count("\n")) == (3, 1)
    assert "does not exist" in errors


async def test_a_journal_that_is_none_is_named_with_its_line(plant: Plant) -> None:
    plant.act(str(uuid.uuid4()))
    with plant.journal.open("a") as file:
        file.write("something else\n")
    code, _, errors = await plant.verify()
    assert (code, errors.count("\n")) == (2, 1)
    assert "line 2 is no journal entry" in errors
