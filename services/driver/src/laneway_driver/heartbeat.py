"""Telling the center that this process lives, what it can take on, and that it stops."""

import asyncio
from collections.abc import Callable
from importlib.metadata import version

import structlog

from laneway_driver.broker_port import Publishing
from laneway_driver.clock import CenterClock
from laneway_shared.broker import Outcome, Outgoing
from laneway_shared.messages import Heartbeat, encode
from laneway_shared.topology import Topology

log = structlog.get_logger(__name__)
VERSION = version("laneway-driver")
RETRY_S = 0.5


class Pulse:
    """The heartbeats of one driver process."""

    def __init__(
        self,
        publisher: Publishing,
        topology: Topology,
        clock: CenterClock,
        *,
        service: str,
        instance: str,
        capacity: int,
        in_flight: Callable[[], int],
        health: Callable[[], str | None],
    ) -> None:
        self._publisher = publisher
        self._topology = topology
        self._clock = clock
        self._service = service
        self._instance = instance
        self._capacity = capacity
        self._in_flight = in_flight
        self._health = health
        self._trouble: str | None = None

    async def run(self, every_s: float, consuming: asyncio.Event) -> None:
        """Send one at once and then every `every_s` seconds, while the command queue is consumed."""
        while True:
            await consuming.wait()
            sent = await self.send("online")
            self._note_health()
            await asyncio.sleep(every_s if sent else RETRY_S)

    async def send(self, state: str, *, timeout_s: float = 2.0) -> bool:
        """Send one; False when it certainly or possibly didn't arrive."""
        offset = self._clock.wall_offset()
        beat = Heartbeat(
            kind="driver",
            service=self._service,
            instance=self._instance,
            version=VERSION,
            state=state,
            capacity=self._capacity,
            in_flight=self._in_flight(),
            clock_offset_ms=None if offset is None else round(offset.total_seconds() * 1000, 1),
            sent_at=self._clock.now(),
        )
        message = Outgoing(
            exchange=self._topology.state_exchange,
            routing_key=self._topology.state_key(self._service),
            body=encode(beat),
            persistent=False,
        )
        [outcome] = await self._publisher.publish([message], timeout_s=timeout_s)
        return outcome is Outcome.CONFIRMED

    def _note_health(self) -> None:
        trouble = self._health()
        if trouble != self._trouble:
            log.warning("adapter.unwell", reason=trouble) if trouble else log.info("adapter.well")
        self._trouble = trouble
