"""One AMQP connection that comes back after a loss."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable

import aio_pika
import structlog
from aio_pika.exceptions import (
    AMQPError,
    ChannelNotFoundEntity,
    ChannelPreconditionFailed,
)
from yarl import URL

from laneway_shared.broker.wire import WiredConnection
from laneway_shared.errors import BrokerAwayError, TopologyMismatchError

log = structlog.get_logger(__name__)

RECONNECT_FIRST_S = 0.1
RECONNECT_MOST_S = 2.0
CONNECT_TIMEOUT_S = 10.0
HEARTBEAT_S = 10
CONNECTION_TROUBLE = (AMQPError, OSError, asyncio.TimeoutError, ConnectionError, RuntimeError, StopAsyncIteration)
"""What aio-pika raises when the broker is away or goes away (RuntimeError: the transport is closing;
StopAsyncIteration: it was closed in the middle of the handshake)."""


class Link:
    """Connects, hands the connection to `serve`, and connects again when it is lost.

    `serve` builds channels and works until the connection is gone; whatever it raises of
    `CONNECTION_TROUBLE` leads to a new connection, everything else ends the link.
    """

    def __init__(self, url: str, name: str, restore: Callable[[], Awaitable[None]] | None = None) -> None:
        """`restore` declares again what somebody deleted."""
        self._restore = restore
        self._url = str(URL(url).update_query(heartbeat=HEARTBEAT_S, name=name))
        self.name = name
        self.connected = asyncio.Event()
        self._connection: WiredConnection | None = None

    async def run(self, serve: Callable[[WiredConnection], Awaitable[None]]) -> None:
        """Serve until cancelled.

        Raises:
            TopologyMismatchError: the broker refuses an argument; trying again would not help.
        """
        delay = RECONNECT_FIRST_S
        while True:
            try:
                async with self._open() as connection:
                    delay = RECONNECT_FIRST_S
                    await _first_done(serve(connection), self._gone(connection))
            except ChannelPreconditionFailed as error:
                raise TopologyMismatchError(f"RabbitMQ refuses a declaration: {error}") from None
            except ChannelNotFoundEntity as error:
                log.warning("broker.missing", link=self.name, error=str(error))
                if self._restore is not None:
                    with contextlib.suppress(BrokerAwayError):
                        await self._restore()
            except CONNECTION_TROUBLE as error:
                log.warning("broker.away", link=self.name, error=f"{type(error).__name__}: {error}")
            await asyncio.sleep(delay * (1 + random.random() / 4))  # noqa: S311 - spreads reconnects
            delay = min(delay * 2, RECONNECT_MOST_S)

    @contextlib.asynccontextmanager
    async def _open(self) -> AsyncIterator[WiredConnection]:
        connection = await aio_pika.connect(self._url, timeout=CONNECT_TIMEOUT_S, connection_class=WiredConnection)
        self._connection = connection
        self.connected.set()
        log.info("broker.connected", link=self.name)
        try:
            yield connection
        finally:
            self.connected.clear()
            self._connection = None
            with contextlib.suppress(*CONNECTION_TROUBLE):
                await asyncio.wait_for(connection.close(), timeout=5)

    @staticmethod
    async def _gone(connection: WiredConnection) -> None:
        while not connection.is_closed:
            transport = connection.transport
            if transport is None:
                return
            # wakes at once when the broker closes; a cancelled `closing` means a lost socket
            await asyncio.wait([transport.connection.closing])
            if transport.connection.closing.done():
                return

    @property
    def blocked(self) -> bool:
        """Whether RabbitMQ holds back what this connection publishes (memory or disk alarm)."""
        return self._connection is not None and self._connection.blocked


async def _first_done(*works: Awaitable[None]) -> None:
    """Run all until the first ends, cancel the rest, raise what it raised."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()
