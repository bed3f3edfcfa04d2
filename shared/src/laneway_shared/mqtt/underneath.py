"""What aiomqtt has no public call for. The only module that reaches through it to paho.

aiomqtt keeps its paho client in `_client` (all of 2.x); paho's own calls used here are public in 2.x:
`manual_ack_set`, `ack`, `connect_timeout`, `socket`. Hence aiomqtt and paho-mqtt stay below 3, and
tests/unit/mqtt/test_underneath.py says so when an update breaks it.
"""

import contextlib
import socket

import aiomqtt
import paho.mqtt.client as paho


def prepare(client: aiomqtt.Client, *, connect_timeout_s: float, manual_acks: bool) -> None:
    """Before connecting: bound the wait for the socket, and leave QoS 1 acks to `acknowledge`."""
    inner = _paho(client)
    inner.connect_timeout = connect_timeout_s
    inner.manual_ack_set(manual_acks)


def acknowledge(client: aiomqtt.Client, message: aiomqtt.Message) -> None:
    """Send the PUBACK of a message that came on this very client; QoS 0 has none.

    When the connection is gone by now, nothing is sent: the broker delivers the message again.
    """
    if message.qos > 0:
        _paho(client).ack(message.mid, message.qos)


def cut_off(client: aiomqtt.Client) -> None:
    """Close the socket without a word. What still waits to be written on it never goes out."""
    sock = _paho(client).socket()
    if isinstance(sock, socket.socket):
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)


def _paho(client: aiomqtt.Client) -> paho.Client:
    return client._client  # noqa: SLF001 - see above
