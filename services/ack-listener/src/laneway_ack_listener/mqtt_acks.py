"""From MQTT to RabbitMQ: an answer is acknowledged to MQTT only after RabbitMQ has its result."""

import asyncio
from collections.abc import AsyncIterator

import aiomqtt
import structlog
from paho.mqtt.subscribeoptions import SubscribeOptions

from laneway_ack_listener.forwarding import Forwarder
from laneway_ack_listener.reading import AnswerReader
from laneway_ack_listener.settings import AckListenerSettings
from laneway_shared import failpoints
from laneway_shared.mqtt import Link, MqttOptions, Session, acknowledge

log = structlog.get_logger(__name__)

_REFUSED_SUBSCRIPTION = 0x80  # reason codes of a SUBACK from here on say no


class MqttAcks:
    """The active listener's work. `listening` is set while answers can arrive."""

    def __init__(self, settings: AckListenerSettings, reader: AnswerReader, forwarder: Forwarder) -> None:
        self._reader = reader
        self._forwarder = forwarder
        self._batch = settings.ack_batch
        self._five = settings.mqtt_version == "5"
        options = MqttOptions(
            # the same for all replicas: the session, and what waits in it, goes to whoever is active
            client_id=f"laneway-ack-{settings.service}",
            version=settings.mqtt_version,
            keepalive_s=settings.mqtt_keepalive_s,
            session=Session(expiry_s=settings.ack_session_s, receive_maximum=settings.ack_receive_maximum),
            manual_acks=True,
        )
        self._link = Link(settings.mqtt_address, options)
        self.listening = asyncio.Event()
        self.in_hand = 0

    async def run(self, stopping: asyncio.Event) -> None:
        """Listen, through losses of the connection, until `stopping`; then finish the batch in hand and return."""
        await self._link.run(lambda client: self._listen(client, stopping), stopping)

    async def _listen(self, client: aiomqtt.Client, stopping: asyncio.Event) -> None:
        try:
            for topic_filter, qos in self._reader.filters.items():
                await self._subscribe(client, topic_filter, qos)
            self.listening.set()
            log.info("mqtt.listening", broker=str(self._link.address), filters=sorted(self._reader.filters))
            async for batch in _batches(client, self._batch, stopping):
                self.in_hand = len(batch)
                failpoints.hit("listener.received")
                await self._forwarder.forward([self._reader.read(message) for message in batch])
                failpoints.hit("listener.published")
                for message in batch:  # in the order of arrival, as MQTT wants it
                    acknowledge(client, message)
                failpoints.hit("listener.acknowledged")
                self.in_hand = 0
        finally:
            self.listening.clear()
            self.in_hand = 0

    async def _subscribe(self, client: aiomqtt.Client, topic_filter: str, qos: int) -> None:
        if self._five:
            # a retained answer is an old one
            options = SubscribeOptions(qos=qos, retainHandling=SubscribeOptions.RETAIN_DO_NOT_SEND)
            granted = await client.subscribe(topic_filter, options=options)
        else:
            granted = await client.subscribe(topic_filter, qos)
        code = granted[0] if isinstance(granted[0], int) else granted[0].value
        if code >= _REFUSED_SUBSCRIPTION:
            raise aiomqtt.MqttError(f"the broker refuses the subscription to {topic_filter}; check its access list")


async def _batches(client: aiomqtt.Client, most: int, stopping: asyncio.Event) -> AsyncIterator[list[aiomqtt.Message]]:
    """What has arrived, up to `most` at a time, until `stopping`; never waits for more to come."""
    messages = client.messages
    stop = asyncio.ensure_future(stopping.wait())
    try:
        while True:
            first = asyncio.ensure_future(anext(messages))
            try:
                await asyncio.wait([first, stop], return_when=asyncio.FIRST_COMPLETED)
            finally:
                if stop.done() or not first.done():
                    first.cancel()
                    await asyncio.gather(first, return_exceptions=True)  # not acknowledged: it comes again
            if stop.done():
                return
            batch = [await first]
            while len(messages) and len(batch) < most:
                batch.append(await anext(messages))
            yield batch
    finally:
        stop.cancel()
