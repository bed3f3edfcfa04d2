"""The way to Mosquitto: hears every lock's commands, sends their answers, comes back after a loss.

The inbound queue has no bound: a burst is stored, not dropped. At most 20 answers are under way at a
time, because Mosquitto closes the connection of a client that exceeds its receive maximum (20).
"""

import asyncio
from collections.abc import Callable

import aiomqtt

from laneway_shared.mqtt import Link, MqttOptions
from laneway_simulator.fleet import AnswerLostError
from laneway_simulator.settings import SimulatorSettings
from laneway_simulator.topics import Topics

_ANSWERS_UNDER_WAY = 20
_PAUSE_S = 0.2  # before an answer that the broker didn't take goes again
_GIVE_UP_AFTER_S = 60.0  # an answer that the broker didn't take for so long is lost
Receive = Callable[[str, bytes], None]


class MqttLink:
    """One connection at a time, clean start, a client id of its own."""

    def __init__(self, settings: SimulatorSettings, *, topics: Topics) -> None:
        options = MqttOptions(
            client_id=f"laneway-simulator-{settings.instance}",
            version=settings.mqtt_version,
            keepalive_s=settings.mqtt_keepalive_s,
            most_unacked=_ANSWERS_UNDER_WAY,
            keep_all=True,
        )
        self._link = Link(settings.mqtt_address, options)
        self._topics = topics
        self._slots = asyncio.Semaphore(_ANSWERS_UNDER_WAY)

    @property
    def is_ready(self) -> bool:
        """Connected and subscribed."""
        return self._link.up.is_set()

    def ack_topic(self, sn: str) -> str:
        """Where the lock answers."""
        return self._topics.ack_topic(sn)

    async def run(self, receive: Receive) -> None:
        """Hand every command to `receive` until cancelled, through whatever happens to the broker."""
        await self._link.run(lambda client: self._hear(client, receive))

    async def send(self, sn: str, payload: bytes) -> None:
        """Publish the lock's answer until the broker has it; over a reconnect it may arrive twice.

        Raises:
            AnswerLostError: it wasn't taken within a minute.
        """
        try:
            async with asyncio.timeout(_GIVE_UP_AFTER_S):
                while not await self._sent(self.ack_topic(sn), payload):
                    pass
        except TimeoutError:
            raise AnswerLostError(f"the MQTT broker took no answer for {_GIVE_UP_AFTER_S:.0f} s") from None

    async def _sent(self, topic: str, payload: bytes) -> bool:
        await self._link.up.wait()
        async with self._slots:
            client = self._link.client
            if client is None:
                return False
            try:
                async with self._link.until_lost():
                    await client.publish(topic, payload, qos=self._topics.ack_qos)
            except TimeoutError:
                return False  # the connection was lost meanwhile
            except aiomqtt.MqttError:
                # the connection's end is seen by `run`; until then don't spin
                await asyncio.sleep(_PAUSE_S)
                return False
        return True

    async def _hear(self, client: aiomqtt.Client, receive: Receive) -> None:
        await client.subscribe(self._topics.command_filter, qos=self._topics.command_qos)
        with self._link.in_use(client):
            async for message in client.messages:
                receive(self._topics.sn_of(message.topic.value), message.payload)
