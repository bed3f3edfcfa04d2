"""Publishing with confirms. Every message gets exactly one outcome, within a bound."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from typing import Protocol

import aio_pika
import structlog
import uuid_utils
from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractExchange, DeliveryMode, HeadersType
from aio_pika.exceptions import DeliveryError, PublishError

from laneway_shared.broker.link import CONNECTION_TROUBLE, Link

log = structlog.get_logger(__name__)


class Outcome(Enum):
    """What is known of a published message."""

    CONFIRMED = "confirmed"
    """RabbitMQ has it, on disk."""
    UNROUTABLE = "unroutable"
    """RabbitMQ returned it: no queue is bound. Certainly not delivered."""
    NOT_SENT = "not_sent"
    """There was no connection; it never left. Certainly not delivered."""
    UNKNOWN = "unknown"
    """No confirm came in time, or a nack. It may or may not be delivered."""


@dataclass(frozen=True, kw_only=True)
class Outgoing:
    """A persistent JSON message for a topic exchange."""

    exchange: str
    routing_key: str
    body: bytes
    correlation_id: str | None = None
    ttl_ms: int | None = None
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
        self._channel: AbstractChannel | None = None
        self._exchanges: dict[str, AbstractExchange] = {}

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["Publisher"]:
        """Keep the connection while the block runs."""
        async with asyncio.TaskGroup() as tasks:
            keeper = tasks.create_task(self._link.run(self._serve), name=f"publisher {self._link.name}")
            try:
                yield self
            finally:
                keeper.cancel()

    async def _serve(self, connection: AbstractConnection) -> None:
        channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
        self._exchanges = {}
        self._channel = channel
        try:
            await channel.closed()
        finally:
            self._channel = None

    @property
    def connected(self) -> bool:
        """Whether a publish would leave this process now."""
        return self._channel is not None

    async def blocked(self) -> bool:
        """Whether RabbitMQ holds back publishes (memory or disk alarm)."""
        return await self._link.blocked()

    async def wait_connected(self, timeout_s: float) -> bool:
        """Wait up to `timeout_s` for a channel."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._channel is None:  # noqa: ASYNC110 - the channel comes and goes
                    await asyncio.sleep(0.02)
        return self._channel is not None

    async def publish(self, messages: Sequence[Outgoing], *, timeout_s: float | None = None) -> list[Outcome]:
        """Publish all at once and wait for their confirms; one outcome per message, in order."""
        if len(messages) == 1:
            return [await self._publish(messages[0], timeout_s or self._timeout_s)]
        return list(await asyncio.gather(*(self._publish(m, timeout_s or self._timeout_s) for m in messages)))

    async def _publish(self, message: Outgoing, timeout_s: float) -> Outcome:
        channel = self._channel
        if channel is None:
            return Outcome.NOT_SENT
        exchange = self._exchanges.get(message.exchange)
        if exchange is None:
            exchange = await channel.get_exchange(message.exchange, ensure=False)
            self._exchanges[message.exchange] = exchange
        headers: HeadersType = dict(message.headers)
        wire = aio_pika.Message(
            message.body,
            headers=headers,
            content_type="application/json",
            delivery_mode=DeliveryMode.PERSISTENT if message.persistent else DeliveryMode.NOT_PERSISTENT,
            correlation_id=message.correlation_id,
            message_id=str(uuid_utils.uuid7()),  # returns are matched by it, so it is unique per publish
            timestamp=datetime.now(UTC),
            expiration=None if message.ttl_ms is None else message.ttl_ms / 1000,
        )
        try:
            await exchange.publish(wire, message.routing_key, mandatory=True, timeout=timeout_s)
        except PublishError:
            return Outcome.UNROUTABLE
        except DeliveryError as error:
            log.warning("broker.nack", exchange=message.exchange, error=str(error))
            return Outcome.UNKNOWN
        except CONNECTION_TROUBLE as error:
            log.warning("broker.unconfirmed", exchange=message.exchange, error=f"{type(error).__name__}: {error}")
            return Outcome.UNKNOWN
        return Outcome.CONFIRMED
