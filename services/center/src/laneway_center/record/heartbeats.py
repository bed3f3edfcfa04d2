"""Heartbeats of drivers and ack-listeners, and the center's own."""

from collections.abc import Sequence

import structlog
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from laneway_center.store.database import DatabaseAwayError
from laneway_center.store.instances import mark_listening, record_heartbeats
from laneway_center.wakeups import Wakeups
from laneway_shared.broker import Consumer, Delivery, ack_all
from laneway_shared.errors import UnreadableMessageError
from laneway_shared.messages import Heartbeat, decode_heartbeat

log = structlog.get_logger(__name__)

CLOCK_OFF_MS = 2_000.0  # as in infra/prometheus/alerts.yaml
LISTENING_EVERY_S = 1.0  # how often a center sends one to itself


class HeartbeatRecorder:
    """Consumes heartbeats. Silence counts only while a center hears its own: the others' could come the same way."""

    def __init__(self, engine: AsyncEngine, consumer: Consumer, wakeups: Wakeups) -> None:
        self._engine, self._consumer, self._wakeups = engine, consumer, wakeups

    async def run(self) -> None:
        """Record until cancelled."""
        async for batch in self._consumer.batches(500):
            beats = [beat for delivery in batch if (beat := _readable(delivery)) is not None]
            others = [beat for beat in beats if beat.kind != "center"]
            _tell_of_clocks(others)
            try:
                if others:
                    await record_heartbeats(self._engine, others)
                    self._wakeups.lanes_ready()  # somebody may be back
                if len(others) < len(beats):
                    await mark_listening(self._engine)
            except DatabaseAwayError as error:
                log.warning("heartbeat.database_away", lost=len(beats), error=error.message)
            except DBAPIError:
                log.exception("heartbeat.refused")
            # a heartbeat that couldn't be stored is worth nothing later
            await ack_all(batch)


def _tell_of_clocks(beats: Sequence[Heartbeat]) -> None:
    for beat in beats:
        if beat.clock_offset_ms is not None and abs(beat.clock_offset_ms) > CLOCK_OFF_MS:
            log.warning(
                "instance.clock_off", service=beat.service, instance=beat.instance, offsetMs=beat.clock_offset_ms
            )


def _readable(delivery: Delivery) -> Heartbeat | None:
    try:
        return decode_heartbeat(delivery.body)
    except UnreadableMessageError as error:
        log.warning("heartbeat.unreadable", error=error.message, routingKey=delivery.routing_key)
        return None
