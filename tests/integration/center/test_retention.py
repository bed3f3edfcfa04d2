"""Retention on a real PostgreSQL: commands move with their timelines, are found again, come back, and go in the end."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import count
from typing import Any, TypeVar

import pytest
from sqlalchemy import event, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from laneway_center import metrics
from laneway_center.intake import Accepted, Answer, Submission
from laneway_center.schedule.archiver import Archiver
from laneway_center.settings import CenterSettings
from laneway_center.store import migrate
from laneway_center.store.actions import Operator
from laneway_center.store.claims import ClaimTerms, claim
from laneway_center.store.commands import Filter, get_command, list_commands, show_events
from laneway_center.store.database import open_engine
from laneway_center.store.evidence import Applied, Item, JudgeTerms, apply
from laneway_center.store.gauges import read_gauges
from laneway_center.store.history import BEGINNING, ArchiveTerms, archive
from laneway_center.store.locked_rows import Change, Subject
from laneway_center.store.operators import Again, resolve, send_again
from laneway_center.store.partitions import DAYS_AHEAD, drop_partitions, make_partitions
from laneway_center.store.statements import SQL
from laneway_center.store.tables import point_command, point_command_event
from laneway_center.store.withdrawals import cancel
from laneway_center.verify.facts import Execution, Journal
from laneway_center.verify.findings import Terms
from laneway_center.verify.rules import check
from laneway_center.verify.snapshot import load
from laneway_shared.judgement import Evidence, Policy
from laneway_shared.lifecycle import FINAL, ResultKind, Status
from laneway_shared.problems import ProblemError
from support.stored import UNLOCK, books_balance, ids, register, rows, run, store, submission

K, S = ResultKind, Status
ResultT = TypeVar("ResultT")
DAY, WEEK = timedelta(days=1), timedelta(days=7)
GRACE = timedelta(seconds=5)
AT_ONCE = JudgeTerms(grace=GRACE, policy=Policy(base=timedelta()), chance=lambda: 0.0)
KIM = Operator(name="kim", why="a test")
LIMIT_S = 20.0  # bound of every wait
COMMANDS = ", ".join(column.name for column in point_command.columns)
EVENTS = ", ".join(column.name for column in point_command_event.columns)
_drivers = count(1)


@pytest.fixture
async def engine(new_database: Callable[[], str]) -> AsyncIterator[AsyncEngine]:
    """A database of its own: the archiver takes whatever is final, whosever it is."""
    made = open_engine(new_database(), size=20, name="tests")
    await migrate.upgrade(made)
    yield made
    await made.dispose()


def terms(most: int = 500, *, hot: timedelta = DAY, retention: timedelta = WEEK) -> ArchiveTerms:
    return ArchiveTerms(hot=hot, retention=retention, most=most)


async def lane_of(engine: AsyncEngine, n: int = 1, **device: Any) -> tuple[str, list[int]]:
    number = next(_drivers)
    driver, devices = f"d{number}", [number * 1000 + k for k in range(n)]
    await register(engine, devices, driver=driver, **device)
    return driver, devices


async def claims(engine: AsyncEngine, driver: str) -> list[Any]:
    given = ClaimTerms(by="t", window_ms=10_000, grace_ms=5_000, most=1000)
    return await claim(engine, driver, room=100_000, profiles=[], terms=given)


def about(command_id: str, kind: ResultKind, attempt: int = 1, **subject: Any) -> Item:
    named: dict[str, Any] = {"tenant_id": 1, "command_id": command_id} | subject
    whom = Subject(**named)
    return Item(subject=whom, evidence=Evidence(kind=kind, attempt=attempt))


async def tell(engine: AsyncEngine, *items: Item) -> Applied:
    return await apply(engine, items, AT_ONCE)


async def ended(engine: AsyncEngine, driver: str, *submissions: Submission, kind: ResultKind = K.SUCCESS) -> list[str]:
    """Commands that went their way to the end: SUCCESS, or with NOT_SENT (one attempt each) DEAD."""
    wanted = ids(await store(engine, *submissions))
    left = set(wanted)
    while left:
        claimed = [row["command_id"] for row in await claims(engine, driver)]
        await tell(engine, *(about(each, kind) for each in claimed))
        left -= set(claimed)
    return wanted


async def age(engine: AsyncEngine, command_ids: Sequence[str], by: timedelta = 2 * DAY) -> None:
    """Let these have ended earlier."""
    await run(
        engine,
        "UPDATE point_command SET finished_at = finished_at - CAST(:by AS interval)"
        " WHERE command_id = ANY(CAST(:ids AS uuid[]))",
        by=by,
        ids=list(command_ids),
    )
    await make_partitions(engine, WEEK)


async def gone(engine: AsyncEngine, driver: str, *submissions: Submission, kind: ResultKind = K.SUCCESS) -> list[str]:
    """Commands that ended two days ago and are archived."""
    wanted = await ended(engine, driver, *submissions, kind=kind)
    await age(engine, wanted)
    await archive(engine, terms())
    assert await place_of(engine, wanted) == {"history"}
    return wanted


async def place_of(engine: AsyncEngine, command_ids: Sequence[str]) -> set[str]:
    """Where these are; each in exactly one table."""
    found = await rows(
        engine,
        "SELECT command_id::text, 'hot' AS place FROM point_command WHERE command_id = ANY(CAST(:ids AS uuid[]))"
        " UNION ALL SELECT command_id::text, 'history' FROM point_command_history"
        " WHERE command_id = ANY(CAST(:ids AS uuid[]))",
        ids=list(command_ids),
    )
    assert sorted(row.command_id for row in found) == sorted(command_ids)
    return {row.place for row in found}


async def replay(engine: AsyncEngine, command_id: str) -> Change:
    subject = Subject(tenant_id=1, command_id=command_id)
    again = Again(expire_in=timedelta(minutes=5), grace=GRACE, force=True)
    change = (await send_again(engine, subject, KIM, again)).change
    assert change is not None
    return change


async def all_is_sound(engine: AsyncEngine) -> None:
    await books_balance(engine)
    facts = await load(engine, None, lambda *_: None)
    assert {name: found for name, found in check(facts, Terms()).items() if found} == {}
    orphaned = await rows(
        engine,
        "SELECT id FROM point_command_event WHERE command_pk NOT IN (SELECT id FROM point_command)"
        " UNION ALL SELECT id FROM point_command_event_history"
        " WHERE (command_pk, finished_at) NOT IN (SELECT id, finished_at FROM point_command_history)",
    )
    assert orphaned == [], "lines without their command"


async def kinds(engine: AsyncEngine, command_id: str) -> list[str]:
    return [row["kind"] for row in await show_events(engine, 1, command_id)]


async def partitions(engine: AsyncEngine) -> list[str]:
    found = await rows(engine, "SELECT relname FROM pg_class WHERE relkind = 'r' AND relname ~ '_[0-9]{8}$' ORDER BY 1")
    return [row.relname for row in found]


async def today(engine: AsyncEngine) -> datetime:
    [row] = await rows(engine, "SELECT date_trunc('day', clock_timestamp(), 'UTC') AS day")
    day: datetime = row.day
    return day


def names_of(*days: datetime) -> list[str]:
    return sorted(f"point_command{which}_history_{day:%Y%m%d}" for day in days for which in ("", "_event"))


async def blocked(engine: AsyncEngine, n: int = 1) -> None:
    """Wait until so many statements wait for a lock."""
    asked = "SELECT count(*) AS n FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    async with asyncio.timeout(LIMIT_S):
        while (await rows(engine, asked))[0].n < n:  # noqa: ASYNC110 - PostgreSQL tells nobody
            await asyncio.sleep(0.01)


@asynccontextmanager
async def meanwhile(engine: AsyncEngine, work: Coroutine[Any, Any, ResultT]) -> AsyncIterator[asyncio.Task[ResultT]]:
    """Begin work that has to wait for what the block holds; the block ends once it waits."""
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(work)
        await blocked(engine)
        yield task


@asynccontextmanager
async def archiving(engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    """An archiver that has moved its batch and is about to commit."""
    async with engine.begin() as connection:
        assert (await connection.execute(SQL["lock_archiving"])).scalar_one()
        asked = {"after": BEGINNING, "hot_ms": 86_400_000, "most": 500, "final": sorted(FINAL)}
        moving = [row.id for row in await connection.execute(SQL["lock_finished"], asked)]
        await connection.execute(SQL["archive_commands"], {"ids": moving, "retention_ms": 7 * 86_400_000})
        yield connection


@contextmanager
def counted(engine: AsyncEngine, word: str) -> Iterator[list[str]]:
    """The statements executed meanwhile that name something."""
    seen: list[str] = []

    def listen(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if word in statement:
            seen.append(statement)

    event.listen(engine.sync_engine, "before_cursor_execute", listen)
    try:
        yield seen
    finally:
        event.remove(engine.sync_engine, "before_cursor_execute", listen)


# ------------------------------------------------------------------------------------------ moving
async def test_a_command_moves_whole_with_its_timeline(engine: AsyncEngine) -> None:
    driver, [device] = await lane_of(engine)
    [one] = await ended(engine, driver, submission(device, "7", intent_key="x"))
    await age(engine, [one])
    stored = await rows(engine, f"SELECT {COMMANDS} FROM point_command")
    lines = await rows(engine, f"SELECT {EVENTS} FROM point_command_event ORDER BY id")
    shown, told = await get_command(engine, 1, one), await show_events(engine, 1, one)
    assert (await archive(engine, terms())).moved == 1
    assert await rows(engine, f"SELECT {COMMANDS} FROM point_command_history") == stored
    assert await rows(engine, f"SELECT {EVENTS} FROM point_command_event_history ORDER BY id") == lines
    assert await rows(engine, "SELECT id FROM point_command UNION ALL SELECT id FROM point_command_event") == []
    assert shown is not None
    assert dict(await get_command(engine, 1, one) or {}) == dict(shown)
    assert await show_events(engine, 1, one) == told
    assert await get_command(engine, 2, one) is None
    assert await show_events(engine, 2, one) == []
    await all_is_sound(engine)


async def test_only_what_ended_before_the_hot_window_moves(engine: AsyncEngine) -> None:
    driver, devices = await lane_of(engine, 6)
    old, young = await ended(engine, driver, submission(devices[0]), submission(devices[1]))
    await age(engine, [old])
    [review, sent] = ids(await store(engine, submission(devices[2], point=UNLOCK), submission(devices[3])))
    await claims(engine, driver)
    await tell(engine, about(review, K.STARTED), about(review, K.UNKNOWN))
    [waiting] = ids(await store(engine, submission(devices[4])))
    [again] = ids(await store(engine, submission(devices[5])))
    await claims(engine, driver)
    await tell(engine, about(again, K.NOT_SENT))
    await run(
        engine, "UPDATE point_command SET create_time = create_time - interval '9 days', update_time = create_time"
    )
    assert (await archive(engine, terms())).moved == 1
    assert await place_of(engine, [old]) == {"history"}
    assert await place_of(engine, [young, review, sent, waiting, again]) == {"hot"}
    await books_balance(engine)


async def test_it_goes_in_batches_of_one_transaction_each_oldest_first(engine: AsyncEngine) -> None:
    driver, devices = await lane_of(engine, 25)
    wanted = await ended(engine, driver, *(submission(device) for device in devices))
    for n, one in enumerate(wanted):
        await age(engine, [one], 2 * DAY - timedelta(minutes=n))
    after, sizes = BEGINNING, []
    while True:
        batch = await archive(engine, terms(most=10), after=after)
        sizes.append(batch.moved)
        after = batch.up_to
        if not batch.more:
            break
    assert sizes == [10, 10, 5]
    by_transaction = await rows(
        engine,
        "SELECT count(*) AS n, min(finished_at) AS first, max(finished_at) AS last FROM point_command_history"
        " GROUP BY xmin::text ORDER BY min(finished_at)",
    )
    assert [row.n for row in by_transaction] == [10, 10, 5]
    assert by_transaction[0].last < by_transaction[1].first
    assert by_transaction[1].last < by_transaction[2].first


async def test_finding_a_batch_reads_the_batch_and_no_more(engine: AsyncEngine) -> None:
    """However many commands there are: an index says which are next, and the bound is one of its conditions."""
    driver, devices = await lane_of(engine, 60)
    wanted = await ended(engine, driver, *(submission(device) for device in devices for _ in range(10)))
    await age(engine, wanted[:40])
    asked = {"after": BEGINNING, "hot_ms": 86_400_000.0, "most": 20, "final": sorted(FINAL)}
    async with engine.begin() as connection:
        await connection.execute(text("SET LOCAL enable_seqscan = off"))
        await connection.execute(text("SET LOCAL enable_bitmapscan = off"))
        explain = text(f"EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF) {SQL['lock_finished'].text}")
        plan = [row[0] for row in await connection.execute(explain, asked)]
        await connection.execute(text("UPDATE point_command SET finished_at = now() WHERE finished_at IS NOT NULL"))
        nothing = [row[0] for row in await connection.execute(explain, asked)]
    shown = "\n".join(plan)
    assert "ix_point_command_finished" in shown
    assert not [line for line in plan if "Rows Removed" in line], shown
    assert not [line for line in nothing if "Rows Removed" in line], "\n".join(nothing)


async def test_many_archivers_at_once_move_each_once(engine: AsyncEngine) -> None:
    driver, devices = await lane_of(engine, 60)
    wanted = await ended(engine, driver, *(submission(device) for device in devices for _ in range(3)))
    await age(engine, wanted)
    before = metrics.ARCHIVED._value.get()
    archivers = [Archiver(engine, CenterSettings(archive_batch=7)) for _ in range(4)]
    async with asyncio.timeout(LIMIT_S):
        while await place_of(engine, wanted) != {"history"}:
            await asyncio.gather(*(archiver.round() for archiver in archivers))
    assert metrics.ARCHIVED._value.get() - before == len(wanted)
    await all_is_sound(engine)


async def test_the_gauge_says_how_far_behind_the_archiver_is(engine: AsyncEngine) -> None:
    driver, [device] = await lane_of(engine)
    assert (await read_gauges(engine)).oldest_final_s == 0
    one, _ = await ended(engine, driver, submission(device), submission(device, "2"))
    await age(engine, [one], 3 * DAY)
    assert (await read_gauges(engine)).oldest_final_s == pytest.approx(3 * 86_400, abs=60)
    await archive(engine, terms())
    assert (await read_gauges(engine)).oldest_final_s < 60


# ------------------------------------------------------------------------------------- idempotency
async def test_an_archived_id_is_still_taken(engine: AsyncEngine) -> None:
    driver, [device] = await lane_of(engine)
    asked = submission(device)
    [one] = await gone(engine, driver, asked)
    await run(engine, "UPDATE device SET enabled = false")  # what is known is known, whatever has become of the device
    fresh, known, reused = await store(engine, submission(device, "3"), asked, submission(device, "2", command_id=one))
    assert isinstance(fresh, ProblemError)
    assert fresh.code == "DEVICE_DISABLED"
    assert isinstance(known, Accepted)
    assert not known.created
    assert known.command["status"] == "SUCCESS"
    assert isinstance(reused, ProblemError)
    assert reused.code == "COMMAND_ID_REUSED"
    assert await place_of(engine, [one]) == {"history"}
    await run(engine, "UPDATE device SET enabled = true")
    new, known = await store(engine, submission(device, "3"), asked)
    assert isinstance(new, Accepted)
    assert new.created
    assert isinstance(known, Accepted)
    assert not known.created
    await all_is_sound(engine)


async def test_the_history_is_asked_once_per_group_and_not_at_all_after_ids_made_here(engine: AsyncEngine) -> None:
    _, [device] = await lane_of(engine)
    with counted(engine, "point_command_history") as asked:
        ids(await store(engine, *(submission(device, str(n), id_made_here=True) for n in range(5))))
        assert asked == []
        given = [submission(device, str(n)) for n in range(5)]
        ids(await store(engine, *given))
        assert len(asked) == 1
        ids(await store(engine, *given))
        assert len(asked) == 1, "they are hot"


async def test_the_same_id_submitted_while_it_is_being_archived(engine: AsyncEngine) -> None:
    driver, [device] = await lane_of(engine)
    same = submission(device)
    other = submission(device, "2", command_id=same.command_id)
    [one] = await ended(engine, driver, same)
    await age(engine, [one])
    answers: list[Answer] = []
    async with asyncio.TaskGroup() as tasks:
        async with archiving(engine) as archiver:
            [hot] = await store(engine, same)  # it looks, and finds the row that is about to go
            waiting = [tasks.create_task(store_unseen(engine, each)) for each in (same, other)]
            await blocked(engine)
            await archiver.commit()
        answers = [(await each)[0] for each in waiting]
    assert isinstance(hot, Accepted)
    known, reused = answers
    assert isinstance(known, Accepted)
    assert not known.created
    assert isinstance(reused, ProblemError)
    assert reused.code == "COMMAND_ID_REUSED"
    assert await place_of(engine, [one]) == {"history"}
    await all_is_sound(engine)


async def store_unseen(engine: AsyncEngine, asked: Submission) -> list[Answer]:
    """Submit, with a first look that came too late for the hot row and too early for the archived one."""
    looks = count()

    def listen(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> tuple[str, Any]:
        if "c.body_hash" in statement and next(looks) == 0:
            statement = statement.replace("WHERE c.command_id", "WHERE false AND c.command_id")
        return statement, parameters

    other = open_engine(engine.url.render_as_string(hide_password=False), size=4, name="submits")
    event.listen(other.sync_engine, "before_cursor_execute", listen, retval=True)
    try:
        return await store(other, asked)
    finally:
        await other.dispose()


# ----------------------------------------------------------------------------------- late evidence
async def test_late_evidence_becomes_a_line_of_the_archived_timeline(engine: AsyncEngine) -> None:
    driver, [device] = await lane_of(engine)
    [one] = await gone(engine, driver, submission(device))
    stranger = str(submission(device).command_id)
    applied = await tell(
        engine,
        about(one, K.FAILED, tenant_id=None, device_sn=f"SN{device}"),
        about(stranger, K.SUCCESS),
        about(one, K.SUCCESS, device_sn="another"),
        about(one, K.SUCCESS),
    )
    assert applied.orphans == (1, 2)
    assert applied.changes == ()
    told = await show_events(engine, 1, one)
    assert [row["kind"] for row in told] == ["STORED", "CLAIMED", "SUCCESS", "FAILED", "SUCCESS"]
    assert {(row["from_status"], row["to_status"], row["note"]) for row in told[3:]} == {
        ("SUCCESS", "SUCCESS", "came after the end")
    }
    await all_is_sound(engine)


async def test_late_evidence_while_the_command_moves(engine: AsyncEngine) -> None:
    driver, [device] = await lane_of(engine)
    [one] = await ended(engine, driver, submission(device))
    await age(engine, [one])
    async with asyncio.TaskGroup() as tasks:
        async with archiving(engine) as archiver:
            late = tasks.create_task(tell(engine, about(one, K.FAILED)))
            await blocked(engine)
            await archiver.commit()
        assert (await late).orphans == ()
    assert await kinds(engine, one) == ["STORED", "CLAIMED", "SUCCESS", "FAILED"]
    await all_is_sound(engine)


async def test_a_row_that_somebody_holds_is_left_for_the_next_round(engine: AsyncEngine) -> None:
    driver, devices = await lane_of(engine, 2)
    one, two = await ended(engine, driver, *(submission(device) for device in devices))
    await age(engine, [one, two])
    async with engine.begin() as holder:
        await holder.execute(text("SELECT id FROM point_command WHERE command_id = :c FOR UPDATE"), {"c": one})
        async with asyncio.timeout(LIMIT_S):
            assert (await archive(engine, terms())).moved == 1
    assert await place_of(engine, [one]) == {"hot"}
    assert await place_of(engine, [two]) == {"history"}
    assert (await archive(engine, terms())).moved == 1


# ------------------------------------------------------------------------------------------ replay
async def test_an_archived_command_is_sent_again_and_archived_again(engine: AsyncEngine) -> None:
    driver, [device] = await lane_of(engine)
    asked = submission(device, max_attempts=1)
    [one] = await gone(engine, driver, asked, kind=K.NOT_SENT)
    await tell(engine, about(one, K.UNKNOWN))  # late, into the archived timeline
    change = await replay(engine, one)
    assert (change.before, change.after) == (S.DEAD, S.PENDING)
    assert await place_of(engine, [one]) == {"hot"}
    await all_is_sound(engine)
    [row] = await claims(engine, driver)
    assert (row["command_id"], row["attempt"]) == (one, 2)
    await tell(engine, about(one, K.SUCCESS, 2))
    await age(engine, [one])
    assert (await archive(engine, terms())).moved == 1
    assert await place_of(engine, [one]) == {"history"}
    told = ["STORED", "CLAIMED", "NOT_SENT", "UNKNOWN", "REPLAYED", "CLAIMED", "SUCCESS"]
    assert await kinds(engine, one) == told
    [known] = await store(engine, asked)
    assert isinstance(known, Accepted)
    assert not known.created
    await all_is_sound(engine)


async def test_an_archived_command_is_sent_again_once_however_often_it_is_asked(engine: AsyncEngine) -> None:
    driver, [device] = await lane_of(engine)
    [one] = await gone(engine, driver, submission(device, max_attempts=1), kind=K.NOT_SENT)
    outcomes = await asyncio.gather(*(replay(engine, one) for _ in range(6)), return_exceptions=True)
    refused = [outcome for outcome in outcomes if isinstance(outcome, ProblemError)]
    assert {problem.code for problem in refused} == {"NOT_REPLAYABLE"}
    assert len(outcomes) - len(refused) == 1
    assert (await kinds(engine, one)).count("REPLAYED") == 1
    await all_is_sound(engine)


async def test_a_refused_act_leaves_an_archived_command_where_it_is(engine: AsyncEngine) -> None:
    driver, [device] = await lane_of(engine)
    [one] = await gone(engine, driver, submission(device))
    with pytest.raises(ProblemError, match="it is SUCCESS"):
        await replay(engine, one)
    with pytest.raises(ProblemError, match="not in review"):
        await resolve(engine, Subject(tenant_id=1, command_id=one), KIM, S.FAILED, grace=GRACE)
    with pytest.raises(ProblemError, match="ended already: SUCCESS"):
        await cancel(engine, Subject(tenant_id=1, command_id=one), grace=GRACE)
    with pytest.raises(ProblemError, match="is known"):
        await cancel(engine, Subject(tenant_id=2, command_id=one), grace=GRACE)
    with pytest.raises(ProblemError, match="is known"):
        await replay(engine, str(submission(device).command_id))
    assert await place_of(engine, [one]) == {"history"}
    await all_is_sound(engine)


async def test_evidence_and_submits_that_meet_a_replay_find_the_command_where_it_went(engine: AsyncEngine) -> None:
    driver, [device] = await lane_of(engine)
    asked = submission(device, max_attempts=1)
    [one] = await gone(engine, driver, asked, kind=K.NOT_SENT)
    async with asyncio.TaskGroup() as tasks:
        async with engine.begin() as holder:  # whoever looks for the archived row has to wait, in this order
            await holder.execute(text("SELECT id FROM point_command_history FOR UPDATE"))
            again = tasks.create_task(replay(engine, one))
            await blocked(engine)
            late = tasks.create_task(tell(engine, about(one, K.UNKNOWN)))
            await blocked(engine, 2)
            await holder.commit()
        assert (await late).orphans == ()
        await again
    [known] = await store(engine, asked)
    assert isinstance(known, Accepted)
    assert not known.created
    assert sorted(await kinds(engine, one)) == sorted(["STORED", "CLAIMED", "NOT_SENT", "REPLAYED", "UNKNOWN"])
    await all_is_sound(engine)


# ---------------------------------------------------------------------------------------- together
class Bustle:
    """Everything that meets archivers, on commands that end DEAD and are old at once."""

    def __init__(self, engine: AsyncEngine, driver: str, asked: Sequence[Submission], seed: int) -> None:
        self.engine, self.driver, self.chance = engine, driver, random.Random(seed)
        self.by_id = {each.command_id: each for each in asked}
        self.all = list(self.by_id)
        self.told: Counter[str] = Counter()
        self.sent_again: Counter[str] = Counter()
        self.done = asyncio.Event()

    async def archives(self) -> None:
        while not self.done.is_set():
            await archive(self.engine, terms(most=5))
            await asyncio.sleep(0)

    async def ends_and_ages(self) -> None:
        """What was sent again ends, and becomes old at once."""
        while not self.done.is_set():
            claimed = [(row["command_id"], row["attempt"]) for row in await claims(self.engine, self.driver)]
            await tell(self.engine, *(about(one, K.NOT_SENT, attempt) for one, attempt in claimed))
            await run(self.engine, _AGE_ALL)

    async def submits(self) -> None:
        for _ in range(40):
            some = [self.by_id[one] for one in self.chance.sample(self.all, 3)]
            other = submission(some[0].device_id, "99", command_id=some[0].command_id)
            *same, reused = await store(self.engine, *some, other)
            assert [isinstance(each, Accepted) and each.created for each in same] == [False] * 3
            assert isinstance(reused, ProblemError)
            assert reused.code == "COMMAND_ID_REUSED"

    async def comes_late(self) -> None:
        for _ in range(60):
            some = self.chance.sample(self.all, 4)
            assert (await tell(self.engine, *(about(one, K.DUPLICATE) for one in some))).orphans == ()
            self.told.update(some)

    async def replays(self) -> None:
        for _ in range(25):
            one = self.chance.choice(self.all)
            try:
                await replay(self.engine, one)
            except ProblemError as problem:
                if problem.code != "NOT_REPLAYABLE":  # somebody else just did
                    raise
            else:
                self.sent_again[one] += 1

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for endless in (self.archives(), self.archives(), self.ends_and_ages()):
                tasks.create_task(endless)
            works = (self.submits(), self.comes_late(), self.comes_late(), self.replays(), self.replays())
            await asyncio.gather(*works)
            self.done.set()


_AGE_ALL = """
WITH locked AS MATERIALIZED (SELECT id FROM point_command WHERE finished_at IS NOT NULL ORDER BY id FOR UPDATE)
UPDATE point_command c SET finished_at = now() - interval '2 days' FROM locked WHERE c.id = locked.id
"""


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_archiving_while_everything_else_goes_on(engine: AsyncEngine, seed: int) -> None:
    """Submits of the same ids, late evidence and replays against archivers: nothing is lost, doubled or torn."""
    driver, devices = await lane_of(engine, 30)
    asked = [submission(device, str(n), max_attempts=1) for n in range(4) for device in devices]
    await age(engine, await ended(engine, driver, *asked, kind=K.NOT_SENT))
    bustle = Bustle(engine, driver, asked, seed)
    await bustle.run()
    await place_of(engine, bustle.all)
    for one in bustle.all:
        lines = Counter(await kinds(engine, one))
        assert (lines["STORED"], lines["DUPLICATE"]) == (1, bustle.told[one])
        assert lines["REPLAYED"] == bustle.sent_again[one]
    assert bustle.sent_again.total() > 0
    await all_is_sound(engine)
    [row] = await rows(engine, "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
    assert row.deadlocks == 0


# ----------------------------------------------------------------------------------------- reading
async def test_the_list_goes_through_both_in_one_order(engine: AsyncEngine) -> None:
    driver, devices = await lane_of(engine, 6)
    wanted = await ended(engine, driver, *(submission(device) for device in devices for _ in range(3)))
    order = [str(row[0]) for row in await rows(engine, "SELECT command_id FROM point_command ORDER BY id DESC")]
    await age(engine, wanted[::2])

    async def pages(archive_between: bool = False, **exact: Any) -> list[str]:
        seen: list[str] = []
        before: int | None = None
        while True:
            page = await list_commands(engine, Filter(tenant_id=1, before_id=before, limit=4, **exact))
            seen += [str(row["command_id"]) for row in page]
            if archive_between:
                await archive(engine, terms(most=2))
            if len(page) < 4:
                return seen
            before = page[-1]["id"]

    assert await pages() == order
    assert await pages(archive_between=True) == order, "a command that moves meanwhile is in it once"
    await archive(engine, terms())
    assert await place_of(engine, wanted[::2]) == {"history"}
    assert await pages() == order
    of_one = [row["device_id"] for row in await list_commands(engine, Filter(tenant_id=1, device_id=devices[0]))]
    assert of_one == [devices[0]] * 3
    assert await pages(status=["SUCCESS"], type="WRITE") == order
    assert await pages(status=["FAILED"]) == []
    assert await list_commands(engine, Filter(tenant_id=2)) == []


async def test_verify_reads_both_and_finds_what_is_wrong_in_the_history(engine: AsyncEngine) -> None:
    driver, [device] = await lane_of(engine)
    first, second = await ended(engine, driver, submission(device), submission(device, "2"))
    await age(engine, [first])
    await archive(engine, terms())
    facts = await load(engine, None, lambda *_: None)
    assert {command.command_id for command in facts.commands.values()} == {first, second}
    assert [each.id for each in facts.events] == sorted(each.id for each in facts.events)
    assert facts.since is not None
    assert [f for f in check(facts, Terms()).values() if f] == []
    assert len((await load(engine, 2, lambda *_: None)).commands) == 0
    await run(engine, "DELETE FROM point_command_event_history WHERE kind = 'CLAIMED'")
    facts = await load(engine, 1, lambda *_: None)
    assert {name for name, found in check(facts, Terms()).items() if found} == {"transitions", "claimed_once"}


async def test_verify_takes_nobody_for_a_stranger_who_may_have_been_dropped(engine: AsyncEngine) -> None:
    _, [device] = await lane_of(engine)
    await make_partitions(engine, WEEK)
    since = await today(engine)
    facts = await load(engine, None, lambda *_: None)
    assert facts.since == since
    name = f"SN{device}"
    done = [
        Execution(journal="j", place=n, device=name, at=at, command_id=str(submission(device).command_id), attempt=1)
        for n, at in enumerate((since - DAY, since + timedelta(seconds=2)))
    ]
    seen = Journal(name="j", executions=tuple(done))
    [finding] = check(replace(facts, at=since + DAY, journals=(seen,)), Terms())["stranger"] or []
    assert done[1].command_id is not None
    assert done[1].command_id in finding.about


# -------------------------------------------------------------------------------------------- days
async def test_days_are_made_ahead_and_on_demand_and_once(engine: AsyncEngine) -> None:
    now = await today(engine)
    ahead = [now + n * DAY for n in range(DAYS_AHEAD + 1)]
    made = await asyncio.gather(*(make_partitions(engine, WEEK) for _ in range(4)))
    assert sorted(name for each in made for name in each) == names_of(*ahead)
    assert await make_partitions(engine, WEEK) == []
    driver, [device] = await lane_of(engine)
    [one] = await ended(engine, driver, submission(device))
    await age(engine, [one], 4 * DAY)
    [row] = await rows(engine, "SELECT date_trunc('day', finished_at, 'UTC') AS day FROM point_command")
    day, days = row.day, []
    while day < now:
        days.append(day)
        day += DAY
    assert await partitions(engine) == names_of(*days, *ahead)
    assert (await archive(engine, terms())).moved == 1


async def test_the_day_of_a_command_is_that_of_its_end_in_utc(engine: AsyncEngine) -> None:
    driver, devices = await lane_of(engine, 4)
    wanted = await ended(engine, driver, *(submission(device) for device in devices))
    midnight = await today(engine) - 2 * DAY
    ends = [midnight - timedelta(microseconds=1), midnight, midnight + DAY - timedelta(microseconds=1), midnight + DAY]
    for one, at in zip(wanted, ends, strict=True):
        await run(engine, "UPDATE point_command SET finished_at = :at WHERE command_id = :c", at=at, c=one)
    await make_partitions(engine, WEEK)
    hot = timedelta(seconds=1)
    assert (await archive(engine, terms(hot=hot))).moved == 4
    placed = await rows(
        engine,
        "SELECT c.command_id::text, c.tableoid::regclass::text AS command,"
        " array_agg(DISTINCT e.tableoid::regclass::text) AS lines"
        " FROM point_command_history c JOIN point_command_event_history e ON e.command_pk = c.id"
        " GROUP BY 1, 2",
    )
    expected = [midnight - DAY, midnight, midnight, midnight + DAY]
    assert {row.command_id: (row.lines[0], row.command, len(row.lines)) for row in placed} == {
        one: (*sorted(names_of(day)), 1) for one, day in zip(wanted, expected, strict=True)
    }


async def test_a_day_is_dropped_when_all_of_it_is_older_than_the_retention(engine: AsyncEngine) -> None:
    driver, devices = await lane_of(engine, 3)
    asked = [submission(device) for device in devices]
    wanted = await ended(engine, driver, *asked)
    day = await today(engine)
    for one, at in zip(wanted, (day - 3 * DAY, day - 2 * DAY, day - DAY), strict=True):
        await run(engine, "UPDATE point_command SET finished_at = :at WHERE command_id = :c", at=at, c=one)
    await make_partitions(engine, WEEK)
    assert (await archive(engine, terms(hot=timedelta(seconds=1)))).moved == 3
    [row] = await rows(engine, "SELECT clock_timestamp() - :day AS since", day=day)
    barely = 2 * DAY + row.since - timedelta(seconds=30)  # the second day's midnight is not yet that old
    before = metrics.PARTITIONS_DROPPED._value.get()
    await Archiver(engine, CenterSettings(history_retention_s=barely.total_seconds())).round()
    assert metrics.PARTITIONS_DROPPED._value.get() - before == 2
    assert await get_command(engine, 1, wanted[0]) is None
    assert await show_events(engine, 1, wanted[0]) == []
    assert await place_of(engine, wanted[1:]) == {"history"}
    [again] = await store(engine, asked[0])
    assert isinstance(again, Accepted)
    assert again.created, "after the retention an id is free"
    await all_is_sound(engine)


async def test_what_is_older_than_the_retention_already_goes_for_good(engine: AsyncEngine) -> None:
    driver, devices = await lane_of(engine, 2)
    old, young = await ended(engine, driver, *(submission(device) for device in devices))
    await age(engine, [old], 30 * DAY)
    await age(engine, [young], 2 * DAY)
    days = await partitions(engine)
    assert (await archive(engine, terms())).moved == 2
    assert await place_of(engine, [young]) == {"history"}
    assert await get_command(engine, 1, old) is None
    assert len(days) <= 2 * (7 + 1 + DAYS_AHEAD + 1), "no days are made to be dropped"
    await all_is_sound(engine)


async def test_dropping_a_day_that_is_read_waits_for_no_one_and_keeps_no_one_waiting(engine: AsyncEngine) -> None:
    driver, [device] = await lane_of(engine)
    asked = submission(device)
    [one] = await gone(engine, driver, asked)
    reads = "SELECT count(*) FROM point_command_history"
    async with engine.connect() as reader:
        await reader.execution_options(isolation_level="REPEATABLE READ")
        await reader.execute(text(reads))
        async with asyncio.TaskGroup() as tasks:
            dropping = tasks.create_task(drop_partitions(engine, timedelta(hours=1)))
            async with asyncio.timeout(LIMIT_S):
                while not dropping.done():
                    began = asyncio.get_running_loop().time()
                    await get_command(engine, 1, str(submission(device).command_id))
                    ids(await store(engine, submission(device)))
                    assert asyncio.get_running_loop().time() - began < 0.4, "somebody was kept waiting"
        dropped = await dropping
        assert dropped.busy
        assert (await reader.execute(text(reads))).scalar_one() == 1, "it still sees what it saw"
    assert not (await drop_partitions(engine, timedelta(hours=1))).busy
    assert await get_command(engine, 1, one) is None
    assert {name[-8:] for name in await partitions(engine)} >= {f"{await today(engine):%Y%m%d}"}


async def test_a_drop_that_was_cut_short_is_finished_later(engine: AsyncEngine) -> None:
    driver, [device] = await lane_of(engine)
    await gone(engine, driver, submission(device))
    [old, *_] = [name for name in await partitions(engine) if name.startswith("point_command_history")]
    await run(engine, f"ALTER TABLE point_command_history DETACH PARTITION {old}")  # and then its process died
    dropped = await drop_partitions(engine, timedelta(hours=1))
    assert old in dropped.names
    assert old not in await partitions(engine)
    made = await make_partitions(engine, timedelta(hours=1))
    assert made == []


async def test_old_letters_are_dropped(engine: AsyncEngine) -> None:
    for n in range(7):
        await run(
            engine,
            "INSERT INTO dead_letter (letter_hash, received_at, queue, reason, body)"
            " VALUES (CAST(:n AS text)::bytea, now() - CAST(:age AS interval), 'q', 'rejected', '')",
            n=str(n),
            age=timedelta(days=8 if n < 5 else 6),
        )
    await Archiver(engine, CenterSettings(archive_batch=2)).round()
    assert len(await rows(engine, "SELECT id FROM dead_letter")) == 2


# ------------------------------------------------------------------------------------------ schema
async def test_history_has_the_columns_of_what_it_keeps(engine: AsyncEngine) -> None:
    """Whatever column the hot tables get, history gets in the same migration."""
    for table, more in (("point_command", set()), ("point_command_event", {("finished_at", "timestamptz")})):
        columns = "SELECT column_name, udt_name FROM information_schema.columns WHERE table_name = :table"
        hot = {tuple(row) for row in await rows(engine, columns, table=table)}
        kept = {tuple(row) for row in await rows(engine, columns, table=f"{table}_history")}
        assert kept == hot | more
        assert hot


async def test_taking_the_migration_back_puts_everything_back(engine: AsyncEngine) -> None:
    driver, [device] = await lane_of(engine)
    [one] = await gone(engine, driver, submission(device))
    old = next(name for name in await partitions(engine) if name.startswith("point_command_event"))
    await run(engine, f"CREATE TABLE {old[:-8]}20000101 (n int)")  # a leftover
    await migrate.downgrade(engine, "0002")
    assert await partitions(engine) == []
    [row] = await rows(engine, "SELECT command_id::text, status FROM point_command")
    assert tuple(row) == (one, "SUCCESS")
    assert [row.kind for row in await rows(engine, "SELECT kind FROM point_command_event ORDER BY id")] == [
        "STORED",
        "CLAIMED",
        "SUCCESS",
    ]
    await migrate.upgrade(engine)
    assert await get_command(engine, 1, one) is not None
