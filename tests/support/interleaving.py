"""A stage for scripted interleavings: the center on its real store, driver processes as objects, the rest played.

The script is RabbitMQ (who gets a message when, and what is redelivered), the device and time, which stands still
until it is moved: for the database (see histories.py), for the drivers' clocks and for the device's journal.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, TypeVar, cast

from sqlalchemy import RowMapping, text
from sqlalchemy.ext.asyncio import AsyncEngine

from laneway_center.dispatch.dispatcher import command_message
from laneway_center.record.dead_letters import DeadLetterRecorder
from laneway_center.record.results import ResultRecorder
from laneway_center.schedule.scheduler import Scheduler
from laneway_center.settings import CenterSettings
from laneway_center.store.claims import ClaimTerms, claim, confirm_sent
from laneway_center.store.evidence import JudgeTerms
from laneway_center.store.tables import HOLDS_LANE
from laneway_center.verify.facts import Execution, Journal
from laneway_center.verify.findings import Finding, Terms
from laneway_center.verify.rules import check
from laneway_center.verify.snapshot import load
from laneway_center.wakeups import Wakeups
from laneway_driver.clock import CenterClock
from laneway_driver.consumer import CommandConsumer
from laneway_driver.dedup import AttemptMemory
from laneway_driver.executor import Executor
from laneway_driver.port import Call, Done, Outcome, Transmitted
from laneway_driver.results import ResultSender
from laneway_shared import broker
from laneway_shared.judgement import Policy
from laneway_shared.lifecycle import ResultKind
from laneway_shared.messages import ResultMessage, Target, encode
from support.stored import LEVEL, ids, register, rows, run, store, submission
from unit.driver.stand_ins import TOPOLOGY, FakeAdapter, FakeDelivery, FakePublisher, until

ResultT = TypeVar("ResultT")
DEVICE, DRIVER = 1, "virtual"
WINDOW_S, CALL_S, GRACE_S = 10.0, 20.0, 5.0  # a call is cut off in real time, so it has plenty
BOUND_S = WINDOW_S + CALL_S + GRACE_S
BACKOFF_S = 3.0  # longer than the pause before a first retry
SETTINGS = CenterSettings(start_window_s=WINDOW_S, call_timeout_s=CALL_S, grace_s=GRACE_S, instance="center")
WAIT_S = 20.0  # bound of every wait, in real time
EXACT = Terms(slack=timedelta(), clock_tolerance=timedelta())  # there is one clock only
IN_FLIGHT_INDEX = "uq_point_command_in_flight"
_EMPTY = (
    "TRUNCATE point_command_event, point_command, lane, dead_letter, dead_end, driver_instance, point, device, driver"
)
_WHOLE = f"CREATE UNIQUE INDEX IF NOT EXISTS {IN_FLIGHT_INDEX} ON point_command (lane_id) WHERE {HOLDS_LANE}"
_BLOCKED = "SELECT count(*) AS n FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


class Parcel(FakeDelivery):
    """A delivery with all that the center's consumers look at."""

    def __init__(self, body: bytes, *, redelivered: bool = False, headers: dict[str, Any] | None = None) -> None:
        super().__init__(body, redelivered=redelivered)
        self.headers = headers or {}
        self.message_id = self.correlation_id = None


@dataclass
class PlayedBroker:
    """What lies in RabbitMQ."""

    commands: deque[tuple[bytes, bool]] = field(default_factory=deque)  # with: redelivered
    results: deque[bytes] = field(default_factory=deque)
    dead: list[Parcel] = field(default_factory=list)

    def give_back(self, deliveries: Sequence[FakeDelivery]) -> None:
        """A connection is lost: what was delivered on it and not acked goes to where it was."""
        for delivery in reversed(deliveries):
            if not delivery.answered and not delivery.lost:
                delivery.lost = True
                self.commands.appendleft((delivery.body, True))

    def time_out(self) -> None:
        """The time to live of all commands that wait is over."""
        death = {"queue": TOPOLOGY.command_queue(DRIVER), "reason": "expired"}
        self.dead += [Parcel(body, headers={"x-death": [death]}) for body, _ in self.commands]
        self.commands.clear()


class Line(FakePublisher):
    """A process' way to the result queue. `confirms` cleared: what it sends arrives, but it doesn't hear so."""

    def __init__(self, results: deque[bytes]) -> None:
        super().__init__()
        self._results = results
        self.confirms = asyncio.Event()
        self.confirms.set()

    async def publish(
        self, messages: Sequence[broker.Outgoing], *, timeout_s: float | None = None
    ) -> list[broker.Outcome]:
        outcomes = await super().publish(messages, timeout_s=timeout_s)
        self._results += [message.body for message in messages]
        await self.confirms.wait()
        return outcomes


class OneBatch:
    """A consumer that has one batch to give."""

    def __init__(self, batch: Sequence[Parcel]) -> None:
        self._batch = batch

    async def batches(self, most: int) -> AsyncIterator[Sequence[Parcel]]:
        assert len(self._batch) <= most
        yield self._batch


class PlayedDevice:
    """Does what reaches it, and keeps a journal."""

    def __init__(self) -> None:
        self.executions: list[Execution] = []
        self.values: dict[str, str | None] = {}  # written last, by point

    def act(self, at: datetime, target: Target, value: str | None, call: Call) -> None:
        self.values[target.point] = value
        execution = Execution(
            journal="device",
            place=len(self.executions),
            device=target.device_sn,
            at=at,
            command_id=call.command_id,
            attempt=call.attempt,
        )
        self.executions.append(execution)


class DriverProcess:
    """A driver. The script hands it messages, and freezes, cuts off or kills it."""

    def __init__(self, name: str, stage: "Stage", *, knows_time: bool) -> None:
        self.name, self._stage = name, stage
        self.line = Line(stage.broker.results)
        self.reached, self.answered = asyncio.Event(), asyncio.Event()  # cleared: the call, its answer take their time
        self.thawed = asyncio.Event()
        for gate in (self.reached, self.answered, self.thawed):
            gate.set()
        self.hands_over = False  # the device's answer comes another way
        adapter = FakeAdapter()
        adapter.behave = self._call
        self._clock = CenterClock(monotonic=stage.seconds, wall=stage.seconds)
        if knows_time:  # it has been at work before
            self._clock.learn(stage.now)
        self._results = ResultSender(self.line, TOPOLOGY, DRIVER)
        self._commands = CommandConsumer(
            executor=Executor(adapter, self._results, self._clock, instance=name, lanes=100),
            results=self._results,
            memory=AttemptMemory(size=100, ttl_s=300, timer=stage.seconds),
            clock=self._clock,
            publisher=self.line,
            topology=TOPOLOGY,
            service=DRIVER,
            instance=name,
            capacity=10,
        )
        self._deliveries: list[FakeDelivery] = []
        self._arrivals: asyncio.Queue[FakeDelivery] = asyncio.Queue()
        self._tasks = [
            stage.tasks.create_task(work) for work in (self._results.run(), self._commands.run(self._read()))
        ]

    @property
    def kinds(self) -> list[str]:
        """What it has said so far."""
        return self.line.kinds

    def take(self) -> None:
        """RabbitMQ delivers it everything that waits."""
        while self._stage.broker.commands:
            body, redelivered = self._stage.broker.commands.popleft()
            delivery = FakeDelivery(body, redelivered=redelivered)
            self._deliveries.append(delivery)
            self._arrivals.put_nowait(delivery)

    async def work(self) -> None:
        """It takes everything that waits and answers it all."""
        self.take()
        await self.done()

    async def done(self) -> None:
        """Wait until it has answered everything."""
        await until(lambda: all(each.answered or each.lost for each in self._deliveries), within_s=WAIT_S)
        await self._commands.idle()
        assert await self._results.flush(WAIT_S) == 0

    async def said(self, *kinds: str) -> None:
        """Wait until it has said just this."""
        await until(lambda: self.kinds == [*kinds], within_s=WAIT_S)

    def lose_connection(self) -> None:
        """Of its consumer. What it publishes goes another way."""
        self._stage.broker.give_back(self._deliveries)

    async def die(self) -> None:
        """At once; nothing more leaves it."""
        for task in self._tasks:
            task.cancel()
            await asyncio.wait([task])
        self.lose_connection()

    async def _read(self) -> AsyncIterator[list[FakeDelivery]]:
        while True:
            delivery = await self._arrivals.get()
            await self.thawed.wait()
            yield [delivery]

    async def _call(self, target: Target, value: str | None, call: Call) -> Outcome:
        await self.reached.wait()
        self._stage.device.act(self._stage.now, target, value, call)
        await self.answered.wait()
        return Transmitted() if self.hands_over else Done(value)


class Stage:
    """Everything together. The center's parts act when the script calls them, and not otherwise."""

    def __init__(self, engine: AsyncEngine, tasks: asyncio.TaskGroup) -> None:
        self.engine, self.tasks = engine, tasks
        self.now: datetime
        self.broker, self.device = PlayedBroker(), PlayedDevice()
        self.drivers: list[DriverProcess] = []
        self.terms = JudgeTerms(grace=timedelta(seconds=GRACE_S), policy=Policy(), chance=lambda: 0.0)
        self._wakeups = Wakeups("postgresql://unused@localhost/unused", listens=False)
        self._line = Line(self.broker.results)

    async def set_up(self) -> None:
        """A clean database with one device and its points."""
        await run(self.engine, _EMPTY)
        await run(self.engine, _WHOLE)
        self.now = (await rows(self.engine, "SELECT clock_timestamp() AS now"))[0].now
        await register(self.engine, [DEVICE], driver=DRIVER)

    def seconds(self) -> float:
        """The time as a clock shows it."""
        return self.now.timestamp()

    async def time_passes(self, seconds: float) -> None:
        """For everybody."""
        by = timedelta(seconds=seconds)
        await run(self.engine, "UPDATE virtual.clock SET at = at + CAST(:by AS interval)", by=by)
        self.now += by

    def driver(self, name: str, *, knows_time: bool = True) -> DriverProcess:
        """Start a driver process."""
        process = DriverProcess(name, self, knows_time=knows_time)
        self.drivers.append(process)
        return process

    # ------------------------------------------------------------------------------ center
    async def submit(self, value: str, *, point: int = LEVEL, **fields: Any) -> str:
        """Accept a command for the device."""
        asked = submission(DEVICE, value, point=point, expire_in_s=600.0, **fields)
        return ids(await store(self.engine, asked, call_timeout_s=CALL_S))[0]

    async def claim(self, by: str) -> list[RowMapping]:
        """A dispatcher claims, and has published nothing so far."""
        terms = ClaimTerms(by=by, window_ms=round(WINDOW_S * 1000), grace_ms=round(GRACE_S * 1000), most=10)
        return await claim(self.engine, DRIVER, room=1000, profiles=[], terms=terms)

    def publish(self, claimed: Sequence[RowMapping]) -> None:
        """It publishes what it claimed."""
        self.broker.commands += [(encode(command_message(row)), False) for row in claimed]

    async def mark(self, claimed: Sequence[RowMapping]) -> None:
        """It hears that the broker has it."""
        await confirm_sent(self.engine, [(row["id"], row["attempt"]) for row in claimed])

    async def dispatch(self) -> None:
        """All three."""
        claimed = await self.claim("dispatcher")
        self.publish(claimed)
        await self.mark(claimed)

    async def record(self) -> None:
        """Apply what waits on the result queue."""
        batch = [Parcel(body) for body in self.broker.results]
        self.broker.results.clear()
        if batch:
            consumer: Any = OneBatch(batch)
            queue = TOPOLOGY.result_queue
            await ResultRecorder(self.engine, consumer, queue, self.terms, self._wakeups, most=500).run()
            assert batch[-1].acked

    async def ask(self) -> None:
        """The scheduler looks after what is due."""
        line = cast("broker.Publisher", self._line)
        scheduler = Scheduler(self.engine, line, TOPOLOGY, SETTINGS, self.terms, self._wakeups)
        await scheduler._look_after_due()

    async def read_letters(self) -> None:
        """The dead letters are stored and sent back."""
        letters, self.broker.dead = self.broker.dead, []
        consumer: Any = OneBatch(letters)
        await DeadLetterRecorder(self.engine, consumer, cast("broker.Publisher", self._line), TOPOLOGY).run()

    async def bound_passes(self) -> None:
        """Nothing was heard: the scheduler asks, the recorder decides, and the pause before a retry goes by."""
        await self.time_passes(BOUND_S)
        await self.ask()
        await self.record()
        await self.time_passes(BACKOFF_S)

    def device_says(self, command_id: str, attempt: int | None) -> None:
        """A late answer of the device, by way of the ack-listener."""
        said = ResultMessage(
            status=ResultKind.SUCCESS, command_id=command_id, attempt=attempt, device_sn=f"SN{DEVICE}",
            finished_at=self.now, instance="listener",
        )  # fmt: skip
        self.broker.results.append(encode(said))

    async def status(self, command_id: str) -> str:
        """The state a command is in."""
        sql = "SELECT status FROM point_command WHERE command_id = CAST(:id AS uuid)"
        [row] = await rows(self.engine, sql, id=command_id)
        return str(row.status)

    async def way(self, command_id: str) -> list[str]:
        """The states it went through."""
        sql = """
        SELECT e.to_status FROM point_command_event e JOIN point_command c ON c.id = e.command_pk
        WHERE c.command_id = CAST(:id AS uuid) AND e.to_status IS DISTINCT FROM e.from_status ORDER BY e.id
        """
        return [row.to_status for row in await rows(self.engine, sql, id=command_id)]

    async def findings(self) -> dict[str, list[Finding]]:
        """What the checker finds, by rule."""
        facts = await load(self.engine, None, lambda *_: None)
        journal = Journal(name="device", executions=tuple(self.device.executions))
        found = check(replace(facts, journals=(journal,)), EXACT)
        assert None not in found.values()
        return {rule: list(about) for rule, about in found.items() if about}

    # ---------------------------------------------------------------------- transactions at once
    async def begin(self, work: Coroutine[Any, Any, ResultT]) -> asyncio.Task[ResultT]:
        """Set a transaction off; come back when it is over or waits for a lock."""
        waiting = await self._blocked()
        task = self.tasks.create_task(work)
        async with asyncio.timeout(WAIT_S):
            while not task.done() and await self._blocked() == waiting:  # noqa: ASYNC110 - asks the database
                await asyncio.sleep(0.01)
        return task

    async def _blocked(self) -> int:
        return int((await rows(self.engine, _BLOCKED))[0].n)

    @contextlib.asynccontextmanager
    async def row_locked(self, command_id: str) -> AsyncIterator[None]:
        """Somebody else works on a command's row."""
        async with self.engine.begin() as connection:
            sql = "SELECT FROM point_command WHERE command_id = CAST(:id AS uuid) FOR UPDATE"
            await connection.execute(text(sql), {"id": command_id})
            yield


@contextlib.asynccontextmanager
async def staged(engine: AsyncEngine) -> AsyncIterator[Stage]:
    """A stage on a migrated database with virtual time."""
    async with asyncio.TaskGroup() as tasks:
        stage = Stage(engine, tasks)
        await stage.set_up()
        try:
            yield stage
        finally:
            for driver in stage.drivers:
                await driver.die()
