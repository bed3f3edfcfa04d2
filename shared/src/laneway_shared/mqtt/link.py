"""A connection to the MQTT broker that comes back after a loss."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import aiomqtt
import structlog

from laneway_shared.mqtt.address import MqttAddress
from laneway_shared.mqtt.connection import MqttOptions, connected

log = structlog.get_logger(__name__)

RECONNECT_FIRST_S = 0.1
RECONNECT_MOST_S = 2.0


class Link:
    """Connects, hands the connection to `serve`, and connects again when it is lost."""

    def __init__(self, address: MqttAddress, options: MqttOptions) -> None:
        self.address = address
        self._options = options
        self.client: aiomqtt.Client | None = None
        """The client in use, if any."""
        self.up = asyncio.Event()
        """Set while there is one."""
        self._waits: set[asyncio.Timeout] = set()

    async def run(
        self, serve: Callable[[aiomqtt.Client], Awaitable[None]], stopping: asyncio.Event | None = None
    ) -> None:
        """Serve until cancelled, or until `stopping` is set and `serve` has returned."""
        end = stopping or asyncio.Event()
        delay_s = RECONNECT_FIRST_S
        while not end.is_set():
            try:
                async with connected(self.address, self._options) as client:
                    log.info("mqtt.connected", broker=str(self.address))
                    delay_s = RECONNECT_FIRST_S
                    await serve(client)
            except aiomqtt.MqttError as error:
                log.warning("mqtt.away", broker=str(self.address), error=str(error))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay_s):
                    await end.wait()
            delay_s = min(delay_s * 2, RECONNECT_MOST_S)

    @contextlib.contextmanager
    def in_use(self, client: aiomqtt.Client) -> Iterator[None]:
        """The client is `client` while the block runs; afterwards nobody waits for it any more."""
        self.client = client
        self.up.set()
        try:
            yield
        finally:
            self.up.clear()
            self.client = None
            now = asyncio.get_running_loop().time()
            for wait in self._waits:
                if not wait.expired():
                    wait.reschedule(now)

    @contextlib.asynccontextmanager
    async def until_lost(self, deadline: float | None = None) -> AsyncIterator[None]:
        """Let the block run until `deadline` (the loop's time) or the client's end, whatever comes first.

        aiomqtt would let a publish wait for its whole timeout although the connection is gone.

        Raises:
            TimeoutError: one of them came.
        """
        async with asyncio.timeout_at(deadline) as wait:
            self._waits.add(wait)
            try:
                yield
            finally:
                self._waits.discard(wait)
