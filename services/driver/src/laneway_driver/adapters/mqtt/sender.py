"""The driver's connection to MQTT: it comes back after a loss, and what was not sent by then never is."""

import asyncio

import aiomqtt
from aiomqtt.exceptions import MqttCodeError
from paho.mqtt.enums import MQTTErrorCode
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from laneway_driver.port import Call, NotSent, Unknown
from laneway_shared.mqtt import Link, MqttOptions, MqttSettings, cut_off
from laneway_shared.profiles import MqttCommand

MOST_UNACKED = 20  # QoS 1 publishes in flight: the receive maximum of Mosquitto as it comes
STUCK_S = 1.0  # a broker that has taken nothing for so long is not going to
UNACKED_WAIT_S = 1.0  # a broker that acks nothing for so long is not waited for


class Sender:
    """Publishes commands. `run` it in a task; `send` never waits for a connection."""

    def __init__(self, settings: MqttSettings, *, client_id: str) -> None:
        self._five = settings.mqtt_version == "5"
        options = MqttOptions(
            client_id=client_id,
            version=settings.mqtt_version,
            keepalive_s=settings.mqtt_keepalive_s,
            most_unacked=MOST_UNACKED,
        )
        self._link = Link(settings.mqtt_address, options)
        self._slots = asyncio.Semaphore(MOST_UNACKED)

    @property
    def connected(self) -> bool:
        """Whether a message would leave this process now, as far as is known."""
        return self._link.up.is_set()

    async def run(self) -> None:
        """Keep connected until cancelled."""
        await self._link.run(self._hold)

    async def _hold(self, client: aiomqtt.Client) -> None:
        with self._link.in_use(client):
            async for _ in client.messages:  # none come: nothing is subscribed; it ends with a loss
                pass

    async def send(self, message: MqttCommand, call: Call) -> NotSent | Unknown | None:
        """Publish; None: it was handed to the transport without error."""
        if message.qos == 0:
            return call.too_late() or await self._publish(message, call.deadline)
        try:
            async with asyncio.timeout(UNACKED_WAIT_S):
                # beyond this number paho would queue, and send whenever it likes
                await self._slots.acquire()
        except TimeoutError:
            return NotSent("MQTT_BUSY", f"{MOST_UNACKED} commands wait for the broker's ack")
        try:
            return call.too_late() or await self._publish(message, call.deadline)
        finally:
            self._slots.release()

    async def _publish(self, message: MqttCommand, deadline: float) -> NotSent | Unknown | None:
        client = self._link.client
        if client is None:
            return NotSent("MQTT_AWAY", "not connected to the MQTT broker")
        began = asyncio.get_running_loop().time()
        try:
            async with self._link.until_lost(deadline):
                await client.publish(
                    message.topic,
                    message.payload,
                    message.qos,
                    retain=False,
                    properties=self._properties(message),
                    timeout=float("inf"),
                )
        except MqttCodeError as error:
            if error.rc == MQTTErrorCode.MQTT_ERR_NO_CONN:  # paho had no socket to queue it for
                return NotSent("MQTT_AWAY", "the connection to the MQTT broker was lost before")
            return Unknown("MQTT_PUBLISH_FAILED", f"publishing broke off: {error}")
        except TimeoutError:
            if self._link.client is not client:
                return Unknown("MQTT_CONNECTION_LOST", "the connection was lost while the command was being sent")
            _cut_if_stuck(client, began)
            return Unknown("MQTT_TIMEOUT", "the MQTT broker did not take the command within the call's time")
        except asyncio.CancelledError:
            _cut_if_stuck(client, began)
            raise
        return None

    def _properties(self, message: MqttCommand) -> Properties | None:
        if not self._five or (message.expiry_s is None and message.correlation_data is None):
            return None
        properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
        if message.expiry_s is not None:
            properties.MessageExpiryInterval = message.expiry_s
        if message.correlation_data is not None:
            properties.CorrelationData = message.correlation_data
        return properties


def _cut_if_stuck(client: aiomqtt.Client, began: float) -> None:
    """A connection that takes nothing now would take it all later, when the commands in it are old."""
    if asyncio.get_running_loop().time() - began >= STUCK_S:
        cut_off(client)
