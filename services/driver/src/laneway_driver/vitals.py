"""What a driver process says of itself."""

from collections.abc import Callable
from importlib.metadata import version

import structlog

from laneway_driver.clock import CenterClock
from laneway_shared.messages import Heartbeat

log = structlog.get_logger(__name__)
VERSION = version("laneway-driver")


class Vitals:
    """Its state for the center, and its adapter's health for the log."""

    def __init__(
        self,
        clock: CenterClock,
        *,
        service: str,
        instance: str,
        capacity: int,
        in_flight: Callable[[], int],
        health: Callable[[], str | None],
    ) -> None:
        self._clock = clock
        self._service = service
        self._instance = instance
        self._capacity = capacity
        self._in_flight = in_flight
        self._health = health
        self._trouble: str | None = None

    def heartbeat(self, state: str) -> Heartbeat:
        """The heartbeat of now. Logs when the adapter's health has changed since the last one."""
        self._note_health()
        offset = self._clock.wall_offset()
        return Heartbeat(
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

    def _note_health(self) -> None:
        trouble = self._health()
        if trouble != self._trouble:
            log.warning("adapter.unwell", reason=trouble) if trouble else log.info("adapter.well")
        self._trouble = trouble
