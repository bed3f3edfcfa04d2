"""Stand-ins for RabbitMQ, device and clock, and a driver built on them."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from laneway_driver.clock import CenterClock
from laneway_driver.consumer import CommandConsumer
from laneway_driver.dedup import AttemptMemory
from laneway_driver.executor import Executor
from laneway_driver.port import Call, Done, Outcome
from laneway_driver.results import ResultSender
from laneway_shared import broker
from laneway_shared.messages import CommandMessage, ResultMessage, Target, decode_results, encode
from laneway_shared.topology import Topology

NOW = datetime(2030, 1, 1, tzinfo=UTC)
COMMAND_ID = "0190c3e2-0000-7000-8000-000000000001"
TOPOLOGY = Topology()


async def until(condition: Callable[[], object], *, within_s: float = 5.0) -> None:
    """Wait for a condition; fails when it takes too long."""
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 - conditions of any kind
            await asyncio.sleep(0.001)


def command(**changes: Any) -> CommandMessage:
    """A write of an unsafe point, published now; `changes` are fields in camelCase."""
    fields: dict[str, Any] = {
        "commandId": COMMAND_ID,
        "attempt": 1,
        "tenantId": 1,
        "type": "WRITE",
        "payload": {"kind": "Write", "deviceId": 1, "pointId": 2, "value": "1"},
        "target": {"deviceSn": "A100", "point": "lock", "constraints": {"valueType": "int", "min": 0, "max": 1}},
        "retrySafety": "unsafe",
        "gate": "ack",
        "laneKey": "device:1",
        "laneToken": 5,
        "occurredAt": NOW,
        "expireAt": NOW + timedelta(seconds=60),
        "publishedAt": NOW,
        "startBy": NOW + timedelta(seconds=10),
        "callTimeout": 5.0,
    }
    return msgspec.convert(fields | changes, CommandMessage)


def read_command(**changes: Any) -> CommandMessage:
    """A read, published now."""
    payload = {"kind": "Read", "deviceId": 1, "pointId": 2}
    return command(**{"type": "READ", "payload": payload, "retrySafety": "safe"} | changes)


class FakeDelivery:
    """A delivery whose fate can be looked at."""

    def __init__(self, message: CommandMessage | bytes, *, redelivered: bool = False) -> None:
        self.body = message if isinstance(message, bytes) else encode(message)
        self.redelivered = redelivered
        self.routing_key = TOPOLOGY.command_key("virtual")
        self.lost = False
        self.answered = False
        self.acked = False
        self.rejected = False

    async def ack(self, *, multiple: bool = False) -> bool:  # noqa: ARG002 - the port's signature
        self.acked = self.answered = not self.lost
        return self.acked

    async def reject(self) -> bool:
        self.rejected = self.answered = not self.lost
        return self.rejected


class FakePublisher:
    """Confirms what it is given, or whatever `outcome` says of a message."""

    def __init__(self) -> None:
        self.published: list[broker.Outgoing] = []
        self.outcome: Callable[[broker.Outgoing], broker.Outcome] = lambda _: broker.Outcome.CONFIRMED
        self.gate = asyncio.Event()
        self.gate.set()

    async def publish(
        self,
        messages: Sequence[broker.Outgoing],
        *,
        timeout_s: float | None = None,  # noqa: ARG002 - the port's signature
    ) -> list[broker.Outcome]:
        await self.gate.wait()
        self.published += messages
        return [self.outcome(message) for message in messages]

    @property
    def results(self) -> list[ResultMessage]:
        """All results published so far, confirmed or not."""
        found: list[ResultMessage] = []
        for message in self.published:
            if message.exchange == TOPOLOGY.result_exchange:
                found += [result for result in decode_results(message.body) if isinstance(result, ResultMessage)]
        return found

    @property
    def kinds(self) -> list[str]:
        """Their kinds."""
        return [result.status.value for result in self.results]


class FakeAdapter:
    """A device that does what it is told, at once, unless `behave` says otherwise."""

    def __init__(self) -> None:
        self.calls: list[tuple[Target, str | None, Call]] = []
        self.running = 0
        self.most_running = 0
        self.behave: Callable[[Target, str | None, Call], Awaitable[Outcome]] | None = None

    async def start(self) -> None:
        """Nothing to start."""

    async def stop(self) -> None:
        """Nothing to stop."""

    def health(self) -> str | None:
        return None

    async def read(self, target: Target, call: Call) -> Outcome:
        return await self._do(target, None, call)

    async def write(self, target: Target, value: str, call: Call) -> Outcome:
        return await self._do(target, value, call)

    async def _do(self, target: Target, value: str | None, call: Call) -> Outcome:
        self.calls.append((target, value, call))
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            return await self.behave(target, value, call) if self.behave else Done(value)
        finally:
            self.running -= 1


class Rig:
    """A driver without RabbitMQ: `deliver` to it, look at `publisher` and `adapter`."""

    def __init__(self, *, capacity: int = 10) -> None:
        self.monotonic = 1000.0
        start = NOW.timestamp() - self.monotonic
        self.clock = CenterClock(monotonic=lambda: self.monotonic, wall=lambda: start + self.monotonic)
        self.publisher = FakePublisher()
        self.adapter = FakeAdapter()
        self.results = ResultSender(self.publisher, TOPOLOGY, "virtual")
        self.executor = Executor(self.adapter, self.results, self.clock, instance="virtual-1", lanes=100)
        self.memory = AttemptMemory(size=100, ttl_s=300, timer=lambda: self.monotonic)
        self.commands = CommandConsumer(
            executor=self.executor,
            results=self.results,
            memory=self.memory,
            clock=self.clock,
            publisher=self.publisher,
            topology=TOPOLOGY,
            service="virtual",
            instance="virtual-1",
            capacity=capacity,
        )
        self._arrivals: asyncio.Queue[list[FakeDelivery]] = asyncio.Queue()
        self.task: asyncio.Task[None] | None = None

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["Rig"]:
        async with asyncio.TaskGroup() as tasks:
            sender = tasks.create_task(self.results.run())
            self.task = tasks.create_task(self.commands.run(self._batches()))
            yield self
            self.task.cancel()
            await asyncio.wait([self.task])
            await self.results.flush(1)
            sender.cancel()

    async def _batches(self) -> AsyncIterator[list[FakeDelivery]]:
        while True:
            yield await self._arrivals.get()

    def deliver(self, message: CommandMessage | bytes, *, redelivered: bool = False) -> FakeDelivery:
        delivery = FakeDelivery(message, redelivered=redelivered)
        self._arrivals.put_nowait([delivery])
        return delivery

    async def answer(self, message: CommandMessage | bytes, *, redelivered: bool = False) -> ResultMessage:
        """Deliver, wait for the ack, and return the last result."""
        delivery = self.deliver(message, redelivered=redelivered)
        await until(lambda: delivery.answered)
        return self.publisher.results[-1]
