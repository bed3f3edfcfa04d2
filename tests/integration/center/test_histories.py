"""Arbitrary histories of commands over the real lifecycle and store: whatever happens in whatever order, the books
balance, nothing runs twice or out of order, and everything ends.

`HYPOTHESIS_PROFILE=thorough` looks much longer, and at new histories each time.
"""

import asyncio
import os
import random
from collections import Counter
from collections.abc import Awaitable, Coroutine, Iterator, Sequence
from datetime import timedelta
from functools import partial
from operator import attrgetter
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from msgspec import structs
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from laneway_center.intake import Accepted, Answer, Submission
from laneway_center.store import migrate
from laneway_center.store.actions import Operator
from laneway_center.store.database import open_engine
from laneway_center.store.lanes import hold_lane, release_lane, skip_head
from laneway_center.store.locked_rows import Subject
from laneway_center.store.operators import Again, resolve, send_again
from laneway_center.store.withdrawals import cancel
from laneway_shared.judgement import Evidence
from laneway_shared.lifecycle import (
    LETTER_DELIVERY_LIMIT,
    LETTER_EXPIRED,
    LETTER_REJECTED,
    OPERATOR_TRANSITIONS,
    TRANSITIONS,
    WAITING,
    ResultKind,
    Status,
)
from laneway_shared.problems import ProblemError
from support.histories import GRACE, PULSE, World, check_command, check_lane, make_time_virtual
from support.outside import Action, Message
from support.stored import LEVEL, UNLOCK, rows, store, submission

S, K = Status, ResultKind
ResultT = TypeVar("ResultT")
THOROUGH = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"
EFFORT = settings(
    max_examples=int(os.environ.get("HYPOTHESIS_EXAMPLES", "400")) if THOROUGH else 20,
    stateful_step_count=40 if THOROUGH else 20,
    derandomize=not THOROUGH,
    database=None,
    deadline=None,
    print_blob=False,
    suppress_health_check=list(HealthCheck),
)
PICK = st.integers(0, 10_000)
KIM = Operator(name="kim", why="a test")
DEADLINES = [600.0, 600.0, 600.0, 60.0, 20.0, 5.0]
ENDS_BY = timedelta(seconds=700)  # later than every deadline and bound below
BY_OPERATOR = ("REPLAYED", "REQUEUED", "RESOLVED")

traits = st.fixed_dictionaries(
    {
        "retry": st.sampled_from(["strict", "relaxed"]),
        "review_policy": st.sampled_from(["release", "hold"]),
        "echo": st.sampled_from(["all", "all", "all", "command", "nothing", "wild"]),
        "depth_limit": st.sampled_from([None, None, 4, 2]),
        "on_full": st.sampled_from(["reject", "drop_oldest"]),
    }
)
intents: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.just({}),
    st.fixed_dictionaries(
        {
            "intent_key": st.sampled_from(["x", "x", "y"]),
            "merge": st.sampled_from([None, "latest", "reject_duplicate"]),
            "purpose": st.sampled_from([None, "grant", "revoke"]),
        }
    ),
)
orders = st.fixed_dictionaries(
    {
        "point": st.sampled_from([LEVEL, UNLOCK, UNLOCK, PULSE]),
        "priority": st.sampled_from([None, 0, 1, 2]),
        "gate": st.sampled_from([None, None, "ack", "transport"]),
        "expire_in_s": st.sampled_from(DEADLINES),
        "max_attempts": st.sampled_from([3, 3, 2, 1]),
        "intent": intents,
    }
)
evidence = st.builds(
    Evidence,
    kind=st.sampled_from(list(ResultKind)),
    retryable=st.booleans(),
    reason=st.sampled_from([None, LETTER_EXPIRED, LETTER_REJECTED, LETTER_DELIVERY_LIMIT]),
    ack_timeout=st.sampled_from([None, timedelta(seconds=1), timedelta(seconds=20)]),
    error_code=st.sampled_from([None, "E"]),
)


class Histories(RuleBasedStateMachine):
    """One history: steps of the center, of what is around it, and of time."""

    def __init__(self, engine: AsyncEngine, runner: asyncio.Runner) -> None:
        super().__init__()
        self._runner = runner
        self._failed = False
        self._claimable = True  # something may have changed since the last claim
        self._submitted: list[Submission] = []
        self._last_event = 0
        self._status: dict[int, str | None] = {}
        self._claims: set[tuple[int, int]] = set()
        self._cancelled: set[str] = set()
        self._held: set[str] = set()
        self._let_go: set[int] = set()  # reviews that an operator let the lane go on past
        self._deepest: Counter[int] = Counter()  # how much waited in a lane after anything but a submit
        self.world = World(engine)

    def do(self, work: Coroutine[Any, Any, ResultT]) -> ResultT:
        try:
            return self._runner.run(work)
        except BaseException:
            self._failed = True
            raise

    # ----------------------------------------------------------------------------- submits
    @initialize(
        devices=st.lists(traits, min_size=1, max_size=2),
        shared=st.booleans(),
        first=st.lists(orders, min_size=2, max_size=4),
        seed=PICK,
        steps_between=st.sampled_from([16, 24, 12, 30, 6, 0]),
    )
    def begin(
        self,
        devices: list[dict[str, Any]],
        shared: bool,
        first: list[dict[str, Any]],
        seed: int,
        steps_between: int,
    ) -> None:
        self._chance, self._steps_between = random.Random(seed), steps_between
        self.do(self.world.set_up(devices, shared=shared))
        self.submit(first, 0, twice=False)

    @rule(asked=st.lists(orders, min_size=1, max_size=2), pick=PICK, twice=st.booleans())
    def submit(self, asked: list[dict[str, Any]], pick: int, twice: bool) -> None:
        devices = self.world.devices
        new = [_order(devices[(pick + n) % len(devices)].number, order) for n, order in enumerate(asked)]
        if self._submitted and pick % 3 == 0:
            new.append(self._submitted[pick % len(self._submitted)])  # an earlier one again
        self._submitted += new
        group = [new, new] if twice else [new]

        async def together() -> None:
            answers = await asyncio.gather(*(store(self.world.engine, *part) for part in group))
            for said in answers:
                self._check_answers(new, said)
            created = [
                a.command["command_id"] for said in answers for a in said if isinstance(a, Accepted) and a.created
            ]
            assert len(created) == len(set(created)), "a command was made twice"

        self.do(together())

    def _check_answers(self, new: Sequence[Submission], answers: Sequence[Answer]) -> None:
        for each, answer in zip(new, answers, strict=True):
            if isinstance(answer, ProblemError):
                assert answer.code == "LANE_FULL"
                continue
            other = str(answer.command["command_id"]) != each.command_id
            assert not other or (each.merge == "reject_duplicate" and not answer.created)

    # ------------------------------------------------------------------------------ center
    @rule(by=st.sampled_from(["a", "b", "ab"]), most=st.sampled_from([10, 1]))
    def claim(self, by: str, most: int) -> None:
        async def race() -> None:
            parts = await asyncio.gather(*(self.world.claim(one, most) for one in by))
            got = [row["lane_id"] for part in parts for row in part]
            assert len(got) == len(set(got)), "a lane was claimed twice"
            self.world.outside.claimed.sort(key=attrgetter("pk"))  # whoever got them
            note(f"claimed: {', '.join(map(str, self.world.outside.claimed))}")

        self.do(race())

    @rule(most=st.integers(1, 5))
    def record(self, most: int) -> None:
        taken = self.world.take_from_road(most)
        note(f"recorded: {', '.join(map(str, taken))}")
        self.do(self.world.record(taken))

    @rule(most=st.integers(1, 5), first=st.integers(1, 5))
    def a_recorder_dies_between_commit_and_ack(self, most: int, first: int) -> None:
        self.do(self.world.record(self.world.outside.road[:first]))
        self.record(most)

    @rule(first=st.integers(1, 5), second=st.integers(1, 5))
    def two_recorders_at_once(self, first: int, second: int) -> None:
        world = self.world

        async def both() -> None:
            road = world.outside.road
            await asyncio.gather(world.record(road[:first]), world.record(road[:second]))

        self.do(both())
        world.take_from_road(min(first, second))

    @rule(pick=PICK)
    def an_earlier_result_comes_again(self, pick: int) -> None:
        if self.world.past:
            self.world.outside.road.append(self.world.past[pick % len(self.world.past)])

    @rule(recorded=st.booleans())
    def a_bound_passes(self, recorded: bool) -> None:
        self.do(self._wait())
        if recorded:
            self.record(len(self.world.outside.road))

    @rule(what=st.sampled_from(["asks", "asks, but is slow", "publishes at last", "forgets"]))
    def scheduler(self, what: str) -> None:
        world, road = self.world, self.world.outside.road
        if what == "asks":
            road += self.do(world.ask_due())
        elif what == "asks, but is slow":
            world.questions += self.do(world.ask_due())
        else:
            if what == "publishes at last":
                road += world.questions
            world.questions = []

    @rule(most=st.sampled_from([100, 2]))
    def archiver(self, most: int) -> None:
        note(f"archived: {self.do(self.world.archive(most))}")

    # --------------------------------------------------------------------- around the center
    @rule(picks=st.lists(PICK, min_size=1, max_size=6))
    def something_happens(self, picks: list[int]) -> None:
        for pick in picks:
            possible = self._possible()
            self._act(possible[pick % len(possible)])

    def _bustle(self) -> None:
        """What goes on between the steps, the same each time for the same seed."""
        for _ in range(self._steps_between):
            self._act(self._chance.choice(self._possible()))

    async def _submit_any(self, chance: random.Random) -> None:
        order: dict[str, Any] = {
            "point": chance.choice([LEVEL, UNLOCK, PULSE]),
            "priority": chance.choice([None, 0, 2]),
            "gate": chance.choice([None, None, "transport"]),
            "expire_in_s": chance.choice(DEADLINES),
            "intent": chance.choice([{}, {}, {"intent_key": "x"}, {"intent_key": "x", "merge": "latest"}]),
        }
        new = _order(chance.choice(self.world.devices).number, order)
        self._submitted.append(new)
        self._claimable = True
        self._check_answers([new], await store(self.world.engine, new))

    async def _cancel_any(self, chance: random.Random) -> None:
        await self._cancel(chance.choice(self._submitted).command_id)

    async def _cancel(self, one: str) -> None:
        try:
            await cancel(self.world.engine, Subject(tenant_id=1, command_id=one), grace=GRACE)
        except ProblemError as problem:
            assert problem.code in {"TOO_LATE", "COMMAND_UNKNOWN"}, problem  # noqa: PT017 - others are errors
            note(f"refused: {problem.code}")
        else:
            self._cancelled.add(one)
            self._claimable = True

    def _possible(self) -> list[Action]:
        actions = self.world.outside.actions()
        busy = sum(action.weight for action in actions) + 10 * len(self.world.outside.road)
        if self._claimable:
            actions.append(Action(6, "claim", self._claim))
        else:
            actions.append(Action(2 + busy // 10 if busy else 4, "wait", self._wait))
            actions.append(Action(1, "submit", partial(self._submit_any, self._chance)))
            actions.append(Action(1, "cancel", partial(self._cancel_any, self._chance)))
        if self.world.outside.road:
            actions.append(Action(12, "record", self._record))
        return [action for action in actions for _ in range(action.weight)]

    def _act(self, action: Action) -> None:
        note(action.label)
        self.do(_awaited(action.act()))

    async def _claim(self) -> None:
        await self.world.claim("a")
        self._claimable = False

    async def _wait(self) -> None:
        await self.world.wait()
        self.world.outside.road += await self.world.ask_due()
        self._claimable = True

    async def _record(self) -> None:
        await self.world.record(self.world.take_from_road(3))
        self._claimable = True

    @rule(said=evidence, pick=PICK, whom=st.sampled_from(["right", "older", "null", "future", "device"]), ahead=PICK)
    def anything_is_said(self, said: Evidence, pick: int, whom: str, ahead: int) -> None:
        world = self.world
        if not world.wild:
            return
        row = world.wild[pick % len(world.wild)]
        attempt = {"right": row["attempt"], "older": row["attempt"] - 1, "future": row["attempt"] + 3}.get(whom)
        subject = Subject(tenant_id=1, command_id=row["command_id"])
        if whom == "device":
            subject = Subject(device_sn=row["device_sn"])
        seen = world.now + timedelta(seconds=ahead % 60 - 50)
        world.outside.road.append(Message(subject=subject, evidence=structs.replace(said, attempt=attempt, at=seen)))
        self.do(world.confirm([(row["id"], attempt or 0)]))

    @rule(seconds=st.sampled_from([3.0, 0.3, 3.0, 6.0, 11.0, 16.0]))
    def time_passes(self, seconds: float) -> None:
        self.do(self.world.time_passes(seconds))

    # --------------------------------------------------------------------------- operators
    @rule(pick=PICK, force=st.booleans(), seconds=st.sampled_from([90.0, 5.0]))
    def operator_sends_again(self, pick: int, force: bool, seconds: float) -> None:
        world, one = self.world, self._choose(pick, S.MANUAL_REVIEW, S.DEAD, S.EXPIRED, S.TIMEOUT)
        subject, expire_in = Subject(tenant_id=1, command_id=one), timedelta(seconds=seconds)

        async def ask() -> None:
            try:
                await send_again(world.engine, subject, KIM, Again(expire_in=expire_in, grace=GRACE, force=force))
            except ProblemError as problem:
                note(f"refused: {problem.code}")
            else:
                world.acts.sent_again[one] = world.acts.sent_again.get(one, 0) + 1

        self.do(ask())

    @rule(pick=PICK, status=st.sampled_from([S.SUCCESS, S.FAILED]))
    def operator_decides(self, pick: int, status: Status) -> None:
        world, one = self.world, self._choose(pick, S.MANUAL_REVIEW)

        async def ask() -> None:
            try:
                await resolve(world.engine, Subject(tenant_id=1, command_id=one), KIM, status, grace=GRACE)
            except ProblemError as problem:
                note(f"refused: {problem.code}")
            else:
                world.acts.resolved.add(one)

        self.do(ask())

    @rule(pick=PICK)
    def a_caller_cancels(self, pick: int) -> None:
        self.do(self._cancel(self._choose(pick, S.PENDING, S.RETRY_WAIT)))

    @rule(pick=PICK)
    def operator_holds_or_releases(self, pick: int) -> None:
        async def act() -> None:
            keys = await self.world.lane_keys()
            lane = keys[pick % len(keys)]
            turn = release_lane if lane in self._held else hold_lane
            await turn(self.world.engine, 1, lane, KIM)
            self._held ^= {lane}
            self._claimable = True

        self.do(act())

    @rule(pick=PICK)
    def operator_skips(self, pick: int) -> None:
        async def act() -> None:
            keys = await self.world.lane_keys()
            try:
                await skip_head(self.world.engine, 1, keys[pick % len(keys)], KIM, grace=GRACE, ageing_s=60)
            except ProblemError as problem:
                assert problem.code in {"LANE_EMPTY", "LANE_IN_FLIGHT"}, problem  # noqa: PT017 - others are errors
                note(f"refused: {problem.code}")
            self._claimable = True

        self.do(act())

    def _choose(self, pick: int, *wanted: Status) -> str:
        """A command in one of these states if there is one, else any."""
        known = self.do(self._read("SELECT command_id::text, status FROM every_command WHERE driver = :d ORDER BY id"))
        fit = [row for row in known if row.status in wanted] or known
        return str(fit[pick % len(fit)].command_id)

    async def _read(self, sql: str, **parameters: Any) -> list[Any]:
        return await rows(self.world.engine, sql, d=self.world.driver, **parameters)

    # -------------------------------------------------------------------------- invariants
    @invariant()
    def the_world_goes_on_and_all_is_well(self) -> None:
        if self.world.devices:
            self._bustle()
            self.do(self._all_is_well())

    async def _all_is_well(self) -> None:
        async with self.world.engine.connect() as connection:

            async def read(sql: str) -> list[Any]:
                told = {"d": self.world.driver, "last": self._last_event}
                return list((await connection.execute(text(sql), told)).all())

            commands = await read("SELECT *, clock_timestamp() AS now FROM every_command WHERE driver = :d")
            lanes = await read("SELECT * FROM lane WHERE driver = :d")
            events = await read(
                "SELECT e.* FROM every_command_event e JOIN every_command c ON c.id = e.command_pk"
                " WHERE c.driver = :d AND e.id > :last ORDER BY e.id"
            )
        by_pk = {command.id: command for command in commands}
        for event in events:
            self._check_event(event, by_pk[event.command_pk])
            self._check_hold(event, by_pk, {lane.lane_id: lane for lane in lanes})
            self._check_bound(event, by_pk)
            self._check_absence(event, by_pk[event.command_pk])
            self._last_event = event.id
        for command in commands:
            assert self._status[command.id] == command.status, "a change has no line in the timeline"
            check_command(command)
            assert command.status == S.CANCELLED or str(command.command_id) not in self._cancelled
            self._check_truth(command)
        for lane in lanes:
            check_lane(lane, [command for command in commands if command.lane_id == lane.lane_id])

    def _check_event(self, event: Any, command: Any) -> None:
        before, after, pk = event.from_status, event.to_status, event.command_pk
        assert before == self._status.get(pk), f"timeline of {pk} jumps: {event}"
        self._status[pk] = after
        if before is None:
            assert after == S.PENDING
        elif before != after:
            table = OPERATOR_TRANSITIONS if event.kind in BY_OPERATOR else TRANSITIONS
            assert after in table.get(Status(before), ()), f"{before} -> {after} by {event.kind}"
        if (before, after) == (S.AWAITING_ACK, S.RETRY_WAIT):
            assert command.gate == "ack", f"{pk} takes its lane again after it let the next one go"
        if event.kind == "CLAIMED":
            assert (pk, event.attempt) not in self._claims, "an attempt was claimed twice"
            self._claims.add((pk, event.attempt))
        if event.kind == "CONFIRMED":
            assert (pk, event.attempt) in self.world.confirmed, "another attempt was confirmed"

    def _check_hold(self, event: Any, by_pk: dict[int, Any], lanes: dict[int, Any]) -> None:
        """Nothing is claimed in a lane that is held. An operator acts between two looks, so all events are later."""
        claimed = by_pk[event.command_pk]
        if event.kind == "SKIPPED" and event.to_status == S.MANUAL_REVIEW:
            self._let_go.add(claimed.id)
        elif event.from_status != event.to_status:
            self._let_go.discard(claimed.id)
        if event.kind == "CLAIMED":
            assert lanes[claimed.lane_id].lane_key not in self._held, f"{claimed.id} is claimed in a held lane"
            same_lane = {pk: command for pk, command in by_pk.items() if command.lane_id == claimed.lane_id}
            lane = [pk for pk, c in same_lane.items() if c.review_policy == "hold" and pk not in self._let_go]
            in_review = [pk for pk in lane if self._status.get(pk) == S.MANUAL_REVIEW]
            assert in_review == [], f"{claimed.id} is claimed while {in_review} hold the lane"

    def _check_bound(self, event: Any, by_pk: dict[int, Any]) -> None:
        """No submit makes a lane deeper than its bound; what comes back to wait may."""
        new = by_pk[event.command_pk]
        waiting = sum(
            self._status.get(pk) in WAITING for pk, command in by_pk.items() if command.lane_id == new.lane_id
        )
        if event.kind != "STORED":
            self._deepest[new.lane_id] = max(self._deepest[new.lane_id], waiting)
            return
        sharing = {command.device_id for command in by_pk.values() if command.lane_id == new.lane_id}
        limits = [device.depth_limit for device in self.world.devices if device.number in sharing]
        limit = max((limit or waiting for limit in limits), default=waiting)
        deepest = max(limit, self._deepest[new.lane_id])
        assert waiting <= deepest, f"{waiting} wait in lane {new.lane_id}, which may have {limit}"

    def _check_absence(self, event: Any, command: Any) -> None:
        """Nothing is given up for lost whose answer was on the road in time."""
        if (event.kind, event.from_status) != ("DUE", S.AWAITING_ACK) or event.to_status == S.AWAITING_ACK:
            return
        answered = self.world.outside.answered.get((command.id, event.attempt))
        if answered is not None and command.attempt == event.attempt and command.ack_due_at is not None:
            assert answered > command.ack_due_at, f"{command.id} is {event.to_status} though its answer was on the road"

    def _check_truth(self, command: Any) -> None:
        world, command_id = self.world, str(command.command_id)
        device = next(each for each in world.devices if each.number == command.device_id)
        if device.echo == "wild":
            return
        sure = device.echo != "nothing" or command.retry_safety == "unsafe"
        executed = world.acts.executed(command_id)
        if command.status == S.EXPIRED and sure:
            assert not executed, f"{command.id} is EXPIRED and was executed"
        if command.status == S.SUCCESS and command_id not in world.acts.resolved:
            called = any(each.command_id == command_id for each in world.acts.calls)
            did = executed or (called and not command.ack_expected)
            assert did or not sure, f"{command.id} is SUCCESS and was never executed"

    # ------------------------------------------------------------------------------ the end
    def teardown(self) -> None:
        if not self.world.devices:
            return
        try:
            if not self._failed:
                self.do(self._everything_ends())
        finally:
            self._runner.run(self.world.leave())

    async def _everything_ends(self) -> None:
        world = self.world
        await world.record(world.take_from_road(len(world.outside.road)))
        assert await world.broken_rules() == {}
        for _ in range(3):
            await world.time_passes(ENDS_BY.total_seconds())
            await world.record(await world.ask_due())
            await self._all_is_well()
        left = await self._read("SELECT id, status FROM point_command WHERE driver = :d AND finished_at IS NULL")
        assert {row.status for row in left} <= {S.MANUAL_REVIEW}, f"these never end: {left}"
        stuck = await self._read("SELECT * FROM lane WHERE driver = :d AND state <> 'idle'")
        assert stuck == []
        assert await world.broken_rules() == {}


def _order(device: int, order: dict[str, Any]) -> Submission:
    """What somebody asks for, of a device."""
    plain = {name: value for name, value in order.items() if name != "intent"}
    return submission(device, **plain, **order["intent"])


async def _awaited(work: Awaitable[None]) -> None:
    await work


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    """A loop that is run step by step, since the steps of a state machine aren't coroutines."""
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as made:
        yield made


# When it fails, looking for the shortest history that does takes up to five minutes.
@pytest.mark.timeout(0 if THOROUGH else 600)
def test_any_history_keeps_the_books_the_order_and_the_truth(database_url: str, runner: asyncio.Runner) -> None:
    engine = open_engine(database_url, size=6, name="histories")
    try:
        runner.run(migrate.upgrade(engine))
        runner.run(make_time_virtual(engine))
        run_state_machine_as_test(partial(Histories, engine, runner), settings=EFFORT)  # type: ignore[arg-type]
    finally:
        runner.run(engine.dispose())
