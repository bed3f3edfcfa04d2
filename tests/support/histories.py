"""The center in a history, on the real store, in a database whose clock only goes on when a test says so.

Statements ask `clock_timestamp()`; in such a database that is a function of the test's. So the same steps are the same
history each time, however busy the machine is.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import count
from operator import itemgetter
from typing import Any

from sqlalchemy import RowMapping
from sqlalchemy.ext.asyncio import AsyncEngine

from laneway_center.store.claims import ClaimTerms, claim, confirm_sent
from laneway_center.store.due import Due, take_due
from laneway_center.store.evidence import Item, JudgeTerms, apply
from laneway_center.store.history import ArchiveTerms, archive
from laneway_center.store.locked_rows import Subject
from laneway_center.store.partitions import make_partitions
from laneway_center.store.registry import put_registry
from laneway_center.store.tables import point_command, point_command_event
from laneway_center.verify.facts import Execution, Journal
from laneway_center.verify.findings import Finding, Terms
from laneway_center.verify.rules import check
from laneway_center.verify.snapshot import load
from laneway_shared.judgement import Evidence, Policy
from laneway_shared.lifecycle import FINAL, WAITING, Gate, ResultKind, RetryPlace, Status, holds_lane
from support.outside import Device, Flight, Message, Outside
from support.stored import clear, register, rows, run

GRACE = timedelta(seconds=5)
PULSE = 4  # a point of which no answer is expected
JUDGES = JudgeTerms(grace=GRACE, policy=Policy(), chance=lambda: 0.0)
KEPT = timedelta(days=7)
EXACT = Terms(slack=timedelta(), clock_tolerance=timedelta(), ageing=timedelta(seconds=60))  # there is one clock only
REMEMBERED = 40  # messages that may come again
_numbers = count(1)

_VIRTUAL_TIME = (
    "CREATE SCHEMA virtual",
    "CREATE TABLE virtual.clock AS SELECT date_trunc('second', now()) AS at",
    "CREATE FUNCTION virtual.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS 'SELECT at FROM virtual.clock'",
    """
    DO $$ BEGIN
      EXECUTE format('ALTER DATABASE %I SET search_path = virtual, pg_catalog, public', current_database());
    END $$
    """,
)
_EVERYTHING = """
CREATE VIEW virtual.every_{name} AS
SELECT {columns} FROM public.point_{name} UNION ALL SELECT {columns} FROM public.point_{name}_history
"""
_NEXT_INSTANT = """
SELECT min(at) AS at FROM (
  SELECT CASE WHEN status = 'RETRY_WAIT' THEN next_visible_at ELSE due_at END AS at
  FROM point_command WHERE driver = :driver AND attempt > 0
  UNION ALL SELECT ready_at FROM lane WHERE driver = :driver AND state = 'ready') x
WHERE at > clock_timestamp()
"""


async def make_time_virtual(engine: AsyncEngine) -> None:
    """Give a migrated database a clock that stands still; connections made from now on see it."""
    for statement in _VIRTUAL_TIME:
        await run(engine, statement)
    for table in (point_command, point_command_event):  # hot and archived, for who looks at them from outside
        columns = ", ".join(column.name for column in table.columns)
        await run(engine, _EVERYTHING.format(name=table.name.removeprefix("point_"), columns=columns))
    await engine.dispose()


class World:
    """The store and everything around it for one example, with a driver service and devices of its own."""

    def __init__(self, engine: AsyncEngine) -> None:
        number = next(_numbers)
        self.engine = engine
        self.driver, self._first_device = f"history{number}", number * 10
        self.devices: list[Device] = []
        self.now: datetime
        self.outside = Outside(clock=lambda: self.now, confirm=self._confirm, row=self._row)
        self.acts = self.outside.acts
        self.confirmed: set[tuple[int, int]] = set()
        self.wild: list[RowMapping] = []  # claims of devices about which anything may be said
        self.questions: list[Message] = []  # of a slow scheduler, not yet on the road
        self.past: list[Message] = []  # have been on the road

    async def set_up(self, traits: Sequence[dict[str, Any]], *, shared: bool) -> None:
        """Devices with traits as Device has them, each in a lane of its own or all in one."""
        self.now = (await rows(self.engine, "SELECT clock_timestamp() AS now"))[0].now
        for n, each in enumerate(traits):
            device = Device(number=self._first_device + n, **each)
            self.devices.append(device)
            lane = f"shared:{self.driver}" if shared else None
            policy = {name: each[name] for name in ("retry", "review_policy", "depth_limit", "on_full")}
            await register(self.engine, [device.number], driver=self.driver, lane_key=lane, **policy)
            pulse = {"tenant_id": 1, "device_id": device.number, "point_id": PULSE, "name": "pulse", "access": "W"}
            await put_registry(self.engine, points=[pulse | {"ack": "none"}])

    async def time_passes(self, seconds: float) -> None:
        """Move the database's clock on."""
        by = timedelta(seconds=seconds)
        await run(self.engine, "UPDATE virtual.clock SET at = at + CAST(:by AS interval)", by=by)
        self.now += by

    async def wait(self) -> None:
        """Let time pass until the next attempt is due or may be made."""
        [row] = await rows(self.engine, _NEXT_INSTANT, driver=self.driver)
        if row.at is not None:
            await self.time_passes((row.at - self.now).total_seconds())

    async def leave(self) -> None:
        """Leave an empty database to the next world."""
        await clear(self.engine)

    async def broken_rules(self) -> dict[str, list[Finding]]:
        """What the checker finds in this world. Its journal counts where all answers say what they are about."""
        facts = await load(self.engine, None, lambda *_: None)
        exact = all(device.echo == "all" for device in self.devices)
        executions = tuple(
            Execution(
                journal="devices", place=n, device=flight.device.sn, at=at, command_id=flight.command_id,
                attempt=flight.attempt,
            )
            for n, (flight, at) in enumerate(self.acts.executed_at)
        )  # fmt: skip
        journals = (Journal(name="devices", executions=executions),) if exact else ()
        verdicts = check(replace(facts, at=self.now, journals=journals), EXACT)
        del verdicts["ended"]  # nobody may have asked yet
        return {name: found for name, found in verdicts.items() if found}

    # ------------------------------------------------------------------------------ operators
    async def lane_keys(self) -> list[str]:
        """Its lanes."""
        known = await rows(self.engine, "SELECT lane_key FROM lane WHERE driver = :driver", driver=self.driver)
        return sorted(row.lane_key for row in known)

    # -------------------------------------------------------------------------- dispatchers
    async def claim(self, by: str, most: int = 10) -> list[RowMapping]:
        """A dispatcher claims and has, so far, published nothing."""
        terms = ClaimTerms(by=by, window_ms=10_000, grace_ms=round(GRACE.total_seconds() * 1000), most=most)
        got = await claim(self.engine, self.driver, room=1000, profiles=[], terms=terms)
        for row in sorted(got, key=itemgetter("id")):
            device = next(each for each in self.devices if each.number == row["device_id"])
            if device.echo == "wild":
                self.wild.append(row)
            else:
                self.outside.dispatch(self._flight(device, row))
        return got

    def _flight(self, device: Device, row: RowMapping) -> Flight:
        start_by: datetime = row["start_by"]
        return Flight(
            device=device,
            lane=row["lane_key"],
            pk=row["id"],
            command_id=row["command_id"],
            attempt=row["attempt"],
            token=row["lane_token"],
            unsafe=row["retry_safety"] == "unsafe",
            gate=row["gate"],
            ack_expected=row["point_id"] != PULSE,
            start_by=start_by,
            acts_until=start_by + timedelta(milliseconds=row["call_timeout_ms"]),
        )

    async def confirm(self, attempts: Sequence[tuple[int, int]]) -> None:
        """Mark (row id, attempt) as SENT, whether it is late or not."""
        self.confirmed.update(attempts)
        await confirm_sent(self.engine, attempts)

    async def _confirm(self, flight: Flight) -> None:
        await self.confirm([(flight.pk, flight.attempt)])

    async def _row(self, flight: Flight) -> tuple[str, int]:
        [row] = await rows(self.engine, "SELECT status, attempt FROM every_command WHERE id = :pk", pk=flight.pk)
        return row.status, row.attempt

    # ------------------------------------------------------------------ recorders, schedulers
    async def record(self, messages: Sequence[Message]) -> None:
        """Apply evidence in one transaction."""
        await apply(self.engine, [Item(subject=m.subject, evidence=m.evidence) for m in messages], JUDGES)

    def take_from_road(self, most: int) -> list[Message]:
        """The next messages, which are now in the past."""
        road = self.outside.road
        taken = road[:most]
        del road[:most]
        self.past = (self.past + taken)[-REMEMBERED:]
        return taken

    async def archive(self, most: int) -> int:
        """Move up to so many of the commands that have ended, whosever they are."""
        await make_partitions(self.engine, KEPT)
        return (await archive(self.engine, ArchiveTerms(hot=timedelta(), retention=KEPT, most=most))).moved

    async def ask_due(self) -> list[Message]:
        """What the scheduler would publish now; what never left it ends itself."""
        due = await take_due(self.engine, most=10_000)
        await self.record(self._questions([each for each in due if each.attempt == 0]))
        return self._questions([each for each in due if each.attempt > 0])

    def _questions(self, due: Sequence[Due]) -> list[Message]:
        return [
            Message(
                subject=Subject(tenant_id=each.tenant_id, command_id=each.command_id),
                evidence=Evidence(kind=ResultKind.DUE, attempt=each.attempt, at=each.seen_at),
            )
            for each in due
        ]


def check_command(c: Any) -> None:
    """What holds for the row of any command at any time."""
    assert (c.finished_at is not None) == (c.status in FINAL)
    assert (c.due_at is None) == (c.status in FINAL or c.status == Status.MANUAL_REVIEW), (
        f"{c.status} due at {c.due_at}"
    )
    assert 0 <= c.attempts_spent <= c.max_attempts
    assert c.attempts_spent <= c.attempt
    if c.status == Status.RETRY_WAIT:
        assert c.next_visible_at < c.expire_at, "waits for a retry after its deadline"
    if c.status in (Status.DISPATCHING, Status.SENT):
        assert c.start_by <= c.expire_at, "a start window beyond the deadline"


def check_lane(lane: Any, commands: Sequence[Any]) -> None:
    """The books of a lane agree with its commands, and nobody who may go sleeps."""
    waiting = [c for c in commands if c.status in WAITING]
    holding = [c for c in commands if holds_lane(Status(c.status), Gate(c.gate), RetryPlace(c.retry))]
    assert len(holding) <= 1, f"{len(holding)} commands hold lane {lane.lane_id}"
    assert lane.depth == len(waiting), f"depth {lane.depth}, {len(waiting)} wait"
    assert lane.holder_id == (holding[0].id if holding else None), f"holder {lane.holder_id}, but {holding}"
    reviews = sum(c.status == Status.MANUAL_REVIEW and c.review_hold for c in commands)
    assert lane.review_holds == reviews, f"{lane.review_holds} holds for {reviews} reviews"
    assert len({c.seq for c in commands}) == len(commands), "two commands at one place"
    able = [c for c in waiting if not holding or c is holding[0]]
    expected = "ready" if able else ("busy" if holding else "idle")
    assert lane.state == expected, f"lane is {lane.state}, not {expected}"
    if able:
        wakes = max(min(c.next_visible_at or c.create_time for c in able), able[0].now)
        assert lane.ready_at <= wakes + timedelta(seconds=1), f"wakes at {lane.ready_at}, could at {wakes}"
