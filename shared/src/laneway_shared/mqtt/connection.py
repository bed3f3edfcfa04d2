"""One connection to the MQTT broker, opened and closed so that nothing of it lives on."""

import asyncio
import contextlib
import logging
import socket
import ssl
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass

import aiomqtt
import paho.mqtt.client as paho
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from laneway_shared.mqtt.address import MqttAddress
from laneway_shared.mqtt.underneath import cut_off, prepare

CONNECT_TIMEOUT_S = 4.0
MOST_WAITING_QOS0 = 10_000
# else a second small packet, such as a publish right after an ack, waits some 40 ms for the broker's TCP to answer
_AT_ONCE = ((socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),)

# aiomqtt and paho report each lost connection on their own; whoever holds the connection says it in one line
_silent = logging.getLogger("laneway.mqtt")
_silent.setLevel(logging.CRITICAL)


@dataclass(frozen=True, kw_only=True)
class Session:
    """A session that outlives its connections, taken over by whoever connects with the same client id."""

    expiry_s: int
    """How long the broker keeps it, and what arrives for it, without a connection (MQTT 5)."""
    receive_maximum: int
    """How many QoS 1 messages the broker may have sent without an ack (MQTT 5)."""


@dataclass(frozen=True, kw_only=True)
class MqttOptions:
    """How to connect."""

    client_id: str
    version: str = "5"
    """5 or 3.1.1."""
    keepalive_s: int = 5
    session: Session | None = None
    manual_acks: bool = False
    most_unacked: int = 20
    """Own QoS 1 publishes in flight; more than the broker's receive maximum ends the connection."""
    keep_all: bool = False
    """Drop no QoS 0 message, however many are not yet read."""


class _Arrived(asyncio.Queue[aiomqtt.Message]):
    """Messages not yet read. QoS 1 is bounded by the broker, QoS 0 only by this: it may be dropped by its nature."""

    def put_nowait(self, item: aiomqtt.Message) -> None:
        if item.qos == 0 and self.qsize() >= MOST_WAITING_QOS0:
            raise asyncio.QueueFull
        super().put_nowait(item)


@contextlib.asynccontextmanager
async def connected(address: MqttAddress, options: MqttOptions) -> AsyncIterator[aiomqtt.Client]:
    """A connected client; after the block, also when it is cancelled, its socket is closed.

    Iterate `client.messages` to learn of a loss.

    Raises:
        aiomqtt.MqttError: no connection within about 8 s, or the broker refuses it.
    """
    client = _client(address, options)
    try:
        await _enter(client)
        try:
            yield client
        finally:
            await _leave(client)
    finally:
        cut_off(client)


async def _enter(client: aiomqtt.Client) -> None:
    # connecting runs in a thread that can't be cancelled, and its socket must not live on behind our back
    entering = asyncio.ensure_future(client.__aenter__())
    try:
        await asyncio.shield(entering)
    except asyncio.CancelledError:
        await asyncio.wait([entering])
        if not entering.cancelled() and entering.exception() is None:
            await _leave(client)
        raise


async def _leave(client: aiomqtt.Client) -> None:
    # saying goodbye may fail, and must not take the place of the error or the cancellation that led here
    with contextlib.suppress(aiomqtt.MqttError):
        await client.__aexit__(None, None, None)


def _client(address: MqttAddress, options: MqttOptions) -> aiomqtt.Client:
    five = options.version == "5"
    session = options.session
    client = aiomqtt.Client(
        address.host,
        address.port,
        username=address.username,
        password=address.password,
        logger=_silent,
        identifier=options.client_id,
        protocol=aiomqtt.ProtocolVersion.V5 if five else aiomqtt.ProtocolVersion.V311,
        clean_session=None if five else session is None,
        clean_start=session is None if five else paho.MQTT_CLEAN_START_FIRST_ONLY,
        properties=_connect_properties(session) if five else None,
        timeout=CONNECT_TIMEOUT_S,
        keepalive=options.keepalive_s,
        queue_type=asyncio.Queue[aiomqtt.Message] if options.keep_all else _Arrived,
        max_inflight_messages=options.most_unacked,
        socket_options=_AT_ONCE,
        tls_context=ssl.create_default_context() if address.tls else None,
    )
    client.pending_calls_threshold = sys.maxsize  # the number of concurrent publishes is ours to bound
    prepare(client, connect_timeout_s=CONNECT_TIMEOUT_S, manual_acks=options.manual_acks)
    return client


def _connect_properties(session: Session | None) -> Properties | None:
    if session is None:
        return None
    properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
    properties.SessionExpiryInterval = session.expiry_s
    properties.ReceiveMaximum = session.receive_maximum
    return properties
