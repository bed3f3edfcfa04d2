"""Consuming with bounded prefetch. Deliveries of a lost connection are known to be stale."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import structlog
from aio_pika.abc import AbstractIncomingMessage

from laneway_shared.broker import frames
from laneway_shared.broker.link import Link
from laneway_shared.broker.wire import ChannelWire, WiredConnection

log = structlog.get_logger(__name__)


class Delivery:
    """One message as delivered."""

    __slots__ = ("_header", "_source", "_tag", "answered", "body", "redelivered", "routing_key")

    def __init__(self, source: "_Source", arguments: bytes, header: bytes, body: bytes) -> None:
        self._source, self._header = source, header
        self._tag, self.redelivered, self.routing_key = frames.delivered(arguments)
        """Whether RabbitMQ may have delivered it before; the key it was published with."""
        self.body = body
        self.answered = False

    @property
    def headers(self) -> dict[str, Any]:
        """The AMQP headers, `x-death` among them."""
        return dict(frames.properties(self._header).get("headers") or {})

    @property
    def message_id(self) -> str | None:
        """Unique per publish."""
        return frames.properties(self._header).get("message_id")

    @property
    def lost(self) -> bool:
        """Whether the connection it came on is gone, so that it will be delivered again."""
        return self._source.lost

    async def ack(self, *, multiple: bool = False) -> bool:
        """Take it (with `multiple`: and all before it) off the queue. False: too late, it comes again."""
        return self._answer(frames.ack(self._source.channel.number, self._tag, multiple=multiple))

    async def reject(self) -> bool:
        """Send it to the dead-letter exchange. False: too late, it comes again."""
        return self._answer(frames.reject(self._source.channel.number, self._tag))

    def _answer(self, frame: bytes) -> bool:
        if self._source.lost:
            return False
        self._source.channel.write(frame)
        self.answered = True
        return True


class _Source:
    """A channel that is consumed on, and where its deliveries go."""

    methods = frozenset({frames.DELIVER})

    def __init__(self, channel: ChannelWire, arrived: Callable[[Delivery], None]) -> None:
        self.channel, self._arrived = channel, arrived
        self.lost = False
        channel.attach(self)

    def method(self, method: int, arguments: bytes) -> None:
        """None comes without content."""

    def message(self, _method: int, arguments: bytes, header: bytes, body: bytes) -> None:
        """A delivery."""
        self._arrived(Delivery(self, arguments, header, body))

    def gone(self) -> None:
        """Whatever isn't acked comes again."""
        self.lost = True


class Consumer:
    """Consumes one queue over a link of its own; `run` it in a task and read `batches` or `deliveries`."""

    def __init__(
        self, url: str, name: str, queue: str, *, prefetch: int, restore: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """`restore` declares the queue again when somebody has deleted it."""
        self._link = Link(url, name, restore)
        self._queue = queue
        self._prefetch = prefetch
        self._waiting: deque[Delivery] = deque()
        self._arrived = asyncio.Event()
        self._stopping = asyncio.Event()
        self.consuming = asyncio.Event()

    async def run(self) -> None:
        """Keep consuming until cancelled, through losses of the connection.

        Raises:
            TopologyMismatchError: the queue can't be consumed as declared.
        """
        await self._link.run(self._serve)

    async def _serve(self, connection: WiredConnection) -> None:
        channel = await connection.channel(publisher_confirms=False)
        source = _Source(connection.wire_of(channel), self._put)
        try:
            await channel.set_qos(prefetch_count=self._prefetch)
            queue = await channel.get_queue(self._queue, ensure=True)
            cancelled = asyncio.Event()

            underlay = await channel.get_underlay_channel()
            underlay.on_consumer_cancel_callbacks.add(lambda _frame: cancelled.set())
            tag = await queue.consume(_surprise)
            self.consuming.set()
            log.info("broker.consuming", queue=self._queue, link=self._link.name)
            await self._until_stopped(channel, cancelled)
            if self._stopping.is_set() and not source.lost:
                await queue.cancel(tag)
                self.consuming.clear()
                await channel.closed()  # what is in hand may still be acked until the connection ends
        finally:
            self.consuming.clear()
            source.gone()
            self._waiting = deque(d for d in self._waiting if not d.lost)
            self._arrived.set()

    def _put(self, delivery: Delivery) -> None:
        self._waiting.append(delivery)
        self._arrived.set()

    async def _until_stopped(self, channel: Any, cancelled: asyncio.Event) -> None:
        waits = [
            asyncio.ensure_future(channel.closed()),
            asyncio.ensure_future(cancelled.wait()),
            asyncio.ensure_future(self._stopping.wait()),
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    def stop(self) -> None:
        """Take no new deliveries; those in hand can still be acked until `run` is cancelled."""
        self._stopping.set()

    def take_waiting(self) -> list[Delivery]:
        """What has arrived and not been read yet (for giving it back at a drain)."""
        taken = [d for d in self._waiting if not d.lost]
        self._waiting.clear()
        return taken

    async def batches(self, most: int) -> AsyncIterator[list[Delivery]]:
        """What is waiting, up to `most` at a time and all of one connection; never waits for more to come."""
        while True:
            while not self._waiting:
                self._arrived.clear()
                await self._arrived.wait()
            batch: list[Delivery] = []
            while self._waiting and len(batch) < most:
                delivery = self._waiting.popleft()
                if delivery.lost:
                    continue
                batch.append(delivery)
            if batch:
                yield batch


async def _surprise(_message: AbstractIncomingMessage) -> None:
    log.warning("broker.message", advice="deliveries go past aio-pika")


async def ack_all(batch: Sequence[Delivery]) -> bool:
    """Take a whole batch, read in order, off its queue with one frame."""
    if not batch:
        return True
    done = await batch[-1].ack(multiple=True)
    for delivery in batch:
        delivery.answered = done
    return done
