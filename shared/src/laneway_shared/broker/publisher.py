"""Publishing with confirms. Every message gets exactly one outcome, within a bound."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

import structlog
import uuid_utils

from laneway_shared.broker import frames
from laneway_shared.broker.link import Link
from laneway_shared.broker.wire import ChannelWire, WiredConnection

log = structlog.get_logger(__name__)


class Outcome(Enum):
    """What is known of a published message."""

    CONFIRMED = "confirmed"
    """RabbitMQ has it, on disk."""
    UNROUTABLE = "unroutable"
    """RabbitMQ returned it: no queue is bound. Certainly not delivered."""
    NOT_SENT = "not_sent"
    """There was no connection, or RabbitMQ took nothing; it never left. Certainly not delivered."""
    UNKNOWN = "unknown"
    """No confirm came in time, or a nack. It may or may not be delivered."""


@dataclass(frozen=True, kw_only=True)
class Outgoing:
    """A persistent JSON message for a topic exchange."""

    exchange: str
    routing_key: str
    body: bytes
    correlation_id: str | None = None
    ttl_ms: int | None = None  # from the call of `publish` on, also while RabbitMQ takes nothing
    headers: Mapping[str, str | int] = field(default_factory=dict)
    persistent: bool = True


class Publishing(Protocol):
    """Publishing with confirms, as those see it who only publish; tests stand in for it."""

    async def publish(self, messages: Sequence[Outgoing], *, timeout_s: float | None = None) -> list[Outcome]:
        """Publish all at once; one outcome per message, in order."""


class Publisher:
    """Publishes over a link of its own. Use as `async with Publisher(...) as publisher`."""

    def __init__(self, url: str, name: str, *, timeout_s: float = 5.0) -> None:
        self._link = Link(url, name)
        self._timeout_s = timeout_s
        self._confirms: _Confirms | None = None

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["Publisher"]:
        """Keep the connection while the block runs."""
        async with asyncio.TaskGroup() as tasks:
            keeper = tasks.create_task(self._link.run(self._serve), name=f"publisher {self._link.name}")
            try:
                yield self
            finally:
                keeper.cancel()

    async def _serve(self, connection: WiredConnection) -> None:
        channel = await connection.channel(publisher_confirms=True)
        confirms = _Confirms(connection.wire_of(channel))
        self._confirms = confirms
        try:
            await channel.closed()
        finally:
            self._confirms = None
            confirms.gone()

    @property
    def connected(self) -> bool:
        """Whether a publish would leave this process now."""
        return self._confirms is not None and not self._confirms.lost

    @property
    def blocked(self) -> bool:
        """Whether RabbitMQ holds back publishes (memory or disk alarm)."""
        return self._link.blocked

    async def wait_connected(self, timeout_s: float) -> bool:
        """Wait up to `timeout_s` for a channel."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not self.connected:  # noqa: ASYNC110 - the channel comes and goes
                    await asyncio.sleep(0.02)
        return self.connected

    async def publish(self, messages: Sequence[Outgoing], *, timeout_s: float | None = None) -> list[Outcome]:
        """Publish all at once and wait for their confirms; one outcome per message, in order."""
        patience_s = self._timeout_s if timeout_s is None else timeout_s
        confirms, began = self._confirms, time.monotonic()
        if confirms is None or not messages or not await confirms.free_within(patience_s):
            return [Outcome.NOT_SENT] * len(messages)
        return await confirms.outcomes(messages, patience_s, began)


class _Confirms:
    """A channel in confirm mode: what was published on it, and what the broker says to that."""

    methods = frozenset({frames.ACK, frames.NACK, frames.RETURN})

    def __init__(self, channel: ChannelWire) -> None:
        self._channel = channel
        self._name = uuid_utils.uuid7().hex  # with the delivery tag behind it an id for each publish
        self._tag = 0
        self._open: dict[int, _Batch] = {}  # by delivery tag, in its order
        self.lost = False
        channel.attach(self)

    async def free_within(self, timeout_s: float) -> bool:
        """Whether the broker takes messages now, or soon."""
        if not self._channel.free:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._channel.until_free()
            except (TimeoutError, ConnectionError):
                return False
        return not self.lost

    async def outcomes(self, messages: Sequence[Outgoing], timeout_s: float, began: float) -> list[Outcome]:
        """Send all and wait for what becomes of them. Their times to live run since `began` (monotonic seconds)."""
        waited_ms = int((time.monotonic() - began) * 1000)
        loop = asyncio.get_running_loop()
        batch = _Batch(self._tag + 1, len(messages), loop.create_future())
        now = int(time.time())
        # All of it before the first tag counts: a frame that can't be built must not put the count out of step.
        wire = [
            frames.publish(
                self._channel.number,
                message.exchange,
                message.routing_key,
                message.body,
                message_id=f"{self._name}.{tag}",
                timestamp=now,
                correlation_id=message.correlation_id,
                ttl_ms=None if message.ttl_ms is None else max(message.ttl_ms - waited_ms, 1),
                headers=message.headers,
                persistent=message.persistent,
                most=self._channel.most,
            )
            for tag, message in enumerate(messages, batch.first)
        ]
        self._tag += len(messages)
        self._open.update(dict.fromkeys(range(batch.first, batch.first + len(messages)), batch))
        self._channel.write(b"".join(wire))
        bound = loop.call_later(timeout_s, batch.give_up, "no confirm in time")
        try:
            await batch.done
        finally:
            bound.cancel()
            for tag in range(batch.first, batch.first + len(messages)):
                self._open.pop(tag, None)
        if batch.trouble is not None:
            log.warning("broker.unconfirmed", exchange=messages[0].exchange, messages=batch.left, error=batch.trouble)
        return batch.outcomes

    def method(self, method: int, arguments: bytes) -> None:
        """A confirm or a nack, of one or of all so far."""
        last, multiple = frames.confirmed(arguments)
        outcome = Outcome.CONFIRMED if method == frames.ACK else Outcome.UNKNOWN
        if outcome is Outcome.UNKNOWN:
            log.warning("broker.nack", multiple=multiple)
        for tag in [tag for tag in self._open if tag <= last] if multiple else (last,):
            batch = self._open.pop(tag, None)
            if batch is not None:
                batch.settle(tag, outcome)

    def message(self, _method: int, _arguments: bytes, header: bytes, _body: bytes) -> None:
        """No queue is bound; a confirm will follow."""
        name, _, tag = str(frames.properties(header).get("message_id")).rpartition(".")
        if name == self._name and (batch := self._open.pop(int(tag), None)) is not None:
            batch.settle(int(tag), Outcome.UNROUTABLE)

    def gone(self) -> None:
        """Nothing more is heard of what is open."""
        self.lost = True
        for batch in set(self._open.values()):
            batch.give_up("the connection was lost")
        self._open.clear()


class _Batch:
    """Messages published together. `outcomes` is UNKNOWN where nobody says otherwise."""

    __slots__ = ("done", "first", "left", "outcomes", "trouble")

    def __init__(self, first: int, count: int, done: asyncio.Future[None]) -> None:
        self.first, self.left, self.done = first, count, done
        self.outcomes = [Outcome.UNKNOWN] * count
        self.trouble: str | None = None

    def settle(self, tag: int, outcome: Outcome) -> None:
        """Note what became of one."""
        self.outcomes[tag - self.first] = outcome
        self.left -= 1
        if not self.left and not self.done.done():
            self.done.set_result(None)

    def give_up(self, trouble: str) -> None:
        """Wait no longer."""
        if not self.done.done():
            self.trouble = trouble
            self.done.set_result(None)
