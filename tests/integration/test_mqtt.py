"""Connections to a real MQTT broker."""

import socket

from laneway_shared.mqtt import MqttOptions, connected, parse_address


async def test_small_packets_leave_at_once(mqtt_url: str) -> None:
    """With Nagle's algorithm a publish right behind an ack waits some 40 ms."""
    async with connected(parse_address(mqtt_url), MqttOptions(client_id="at-once")) as client:
        sock = client._client.socket()
        assert isinstance(sock, socket.socket)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
