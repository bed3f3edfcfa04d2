"""MQTT, as Laneway uses it: an address, one connection at a time, and acks by hand.

Needs the extra `mqtt` of this distribution. A connection is never revived: each one has a
client object of its own, so nothing that waited in a lost one (a command, an ack) can go out on the next.
"""

from laneway_shared.mqtt.address import MqttAddress, parse_address
from laneway_shared.mqtt.connection import MqttOptions, Session, connected
from laneway_shared.mqtt.link import Link
from laneway_shared.mqtt.settings import MqttSettings
from laneway_shared.mqtt.underneath import acknowledge, cut_off

__all__ = [
    "Link",
    "MqttAddress",
    "MqttOptions",
    "MqttSettings",
    "Session",
    "acknowledge",
    "connected",
    "cut_off",
    "parse_address",
]
