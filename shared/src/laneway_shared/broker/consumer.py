"""Consuming with bounded prefetch. Deliveries of a lost connection are known to be stale."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import structlog
from aio_pika.abc import AbstractConnection, AbstractIncomingMessage

from laneway_shared.broker.link import CONNECTION_TROUBLE, Link

log = structlog.get_logger(__name__)


class Delivery:
    """One message as delivered. Acks that fail are logged: the broker will deliver again."""

    __slots__ = ("_lost", "_message", "answered")

    def __init__(self, message: AbstractIncomingMessage, lost: asyncio.Event) -> None:
        self._message = message
        self._lost = lost
        self.answered = False

    @property
    def body(self) -> bytes:
        """The raw body."""
        return self._message.body

    @property
    def redelivered(self) -> bool:
        """Whether RabbitMQ may have delivered it before."""
        return bool(self._message.redelivered)

    @property
    def routing_key(self) -> str:
        """The key it was published with."""
        return self._message.routing_key or ""

    @property
    def headers(self) -> dict[str, Any]:
        """The AMQP headers, `x-death` among them."""
        return dict(self._message.headers or {})

    @property
    def message_id(self) -> str | None:
        """Unique per publish."""
        return self._message.message_id

    @property
    def correlation_id(self) -> str | None:
        """The command's id, where it is known."""
        return self._message.correlation_id

    @property
    def lost(self) -> bool:
        """Whether the connection it came on is gone, so that it will be delivered again."""
        return self._lost.is_set()

    async def ack(self, *, multiple: bool = False) -> bool:
        """Take it (with `multiple`: and all before it) off the queue. False: too late, it comes again."""
        return await self._answer(lambda: self._message.ack(multiple=multiple))

    async def reject(self) -> bool:
        """Send it to the dead-letter exchange. False: too late, it comes again."""
        return await self._answer(lambda: self._message.reject(requeue=False))

    async def _answer(self, answer: Callable[[], Awaitable[None]]) -> bool:
        if self.lost:
            return False
        try:
            await answer()
        except CONNECTION_TROUBLE as error:
            log.warning("broker.ack_failed", error=f"{type(error).__name__}: {error}")
            return False
        self.answered = True
        return True


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
        self._lost = asyncio.Event()
        self.consuming = asyncio.Event()

    async def run(self) -> None:
        """Keep consuming until cancelled, through losses of the connection.

        Raises:
            TopologyMismatchError: the queue can't be consumed as declared.
        """
        await self._link.run(self._serve)

    async def _serve(self, connection: AbstractConnection) -> None:
        lost = asyncio.Event()
        channel = await connection.channel(publisher_confirms=False)
        try:
            await channel.set_qos(prefetch_count=self._prefetch)
            queue = await channel.get_queue(self._queue, ensure=True)
            cancelled = asyncio.Event()

            async def arrived(message: AbstractIncomingMessage) -> None:
                # only hands over: a callback dies with its connection, the work must not
                if not lost.is_set():
                    self._waiting.append(Delivery(message, lost))
                    self._arrived.set()

            underlay = await channel.get_underlay_channel()
            underlay.on_consumer_cancel_callbacks.add(lambda _frame: cancelled.set())
            tag = await queue.consume(arrived)
            self._lost = lost
            self.consuming.set()
            log.info("broker.consuming", queue=self._queue, link=self._link.name)
            await self._until_stopped(channel, cancelled)
            if self._stopping.is_set() and not lost.is_set():
                await queue.cancel(tag)
                self.consuming.clear()
                await channel.closed()  # what is in hand may still be acked until the connection ends
        finally:
            self.consuming.clear()
            lost.set()
            self._waiting = deque(d for d in self._waiting if not d.lost)
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


async def ack_all(batch: Sequence[Delivery]) -> bool:
    """Take a whole batch, read in order, off its queue with one frame."""
    if not batch:
        return True
    done = await batch[-1].ack(multiple=True)
    for delivery in batch:
        delivery.answered = done
    return done
