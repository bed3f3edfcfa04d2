"""Heartbeats of drivers and ack-listeners."""

import asyncio

import structlog
from sqlalchemy.ext.asyncio import AsyncEngine

from laneway_center.store.database import DatabaseAwayError
from laneway_center.store.instances import mark_listening, record_heartbeats
from laneway_center.wakeups import Wakeups
from laneway_shared.broker import Consumer, ack_all
from laneway_shared.errors import UnreadableMessageError
from laneway_shared.messages import Heartbeat, decode_heartbeat

log = structlog.get_logger(__name__)

LISTENING_EVERY_S = 1.0


class HeartbeatRecorder:
    """Consumes heartbeats, and says since when it can: silence counts only while somebody listens."""

    def __init__(self, engine: AsyncEngine, consumer: Consumer, wakeups: Wakeups) -> None:
        self._engine, self._consumer, self._wakeups = engine, consumer, wakeups

    async def run(self) -> None:
        """Record until cancelled."""
        async for batch in self._consumer.batches(500):
            beats: list[Heartbeat] = []
            for delivery in batch:
                try:
                    beats.append(decode_heartbeat(delivery.body))
                except UnreadableMessageError as error:
                    log.warning("heartbeat.unreadable", error=error.message, routingKey=delivery.routing_key)
            try:
                if beats:
                    await record_heartbeats(self._engine, beats)
                    self._wakeups.lanes_ready()  # somebody may be back
            except DatabaseAwayError as error:
                log.warning("heartbeat.database_away", lost=len(beats), error=error.message)
            # a heartbeat that couldn't be stored is worth nothing later
            await ack_all(batch)

    async def watch(self) -> None:
        """Keep saying that heartbeats can be received, while they can."""
        while True:
            if self._consumer.consuming.is_set():
                try:
                    await mark_listening(self._engine)
                except DatabaseAwayError as error:
                    log.warning("heartbeat.database_away", error=error.message)
            await asyncio.sleep(LISTENING_EVERY_S)
