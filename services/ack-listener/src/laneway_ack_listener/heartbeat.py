"""Telling the center that answers are being listened for."""

import asyncio
import contextlib
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata

from laneway_ack_listener.mqtt_acks import MqttAcks
from laneway_ack_listener.settings import AckListenerSettings
from laneway_shared.broker import Outgoing, Publisher
from laneway_shared.messages import Heartbeat, encode
from laneway_shared.topology import Topology

LAST_WORD_S = 2.0


class Pulse:
    """Heartbeats while answers can arrive: active, connected to MQTT and subscribed. None otherwise."""

    def __init__(
        self, settings: AckListenerSettings, topology: Topology, publisher: Publisher, profiles: Sequence[str]
    ) -> None:
        self._settings = settings
        self._topology = topology
        self._publisher = publisher
        self._profiles = sorted(profiles)
        self._version = metadata.version("laneway-ack-listener")
        self._told = False

    async def run(self, acks: MqttAcks) -> None:
        """Beat until cancelled."""
        while True:
            await acks.listening.wait()
            self._told = True
            await self._send("online", acks.in_hand)
            await asyncio.sleep(self._settings.heartbeat_every_s)

    async def stop(self) -> None:
        """Say that no more will come, if any came."""
        if self._told:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_WORD_S):
                    await self._send("stopping", 0)

    async def _send(self, state: str, in_hand: int) -> None:
        beat = Heartbeat(
            kind="ack-listener",
            service=self._settings.service,
            instance=self._settings.instance,
            version=self._version,
            state=state,
            in_flight=in_hand,
            profiles=self._profiles,
            sent_at=datetime.now(UTC),
        )
        # one that is lost is made good by the next
        await self._publisher.publish(
            [
                Outgoing(
                    exchange=self._topology.state_exchange,
                    routing_key=self._topology.state_key(self._settings.service),
                    body=encode(beat),
                    persistent=False,
                )
            ]
        )
