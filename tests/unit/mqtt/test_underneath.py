import inspect

import aiomqtt
import paho.mqtt.client as paho

from laneway_shared.mqtt import acknowledge
from laneway_shared.mqtt.underneath import prepare


async def test_paho_is_where_we_reach_for_it() -> None:
    client = aiomqtt.Client("localhost")
    inner = client._client
    assert isinstance(inner, paho.Client)
    assert list(inspect.signature(inner.ack).parameters) == ["mid", "qos"]
    prepare(client, connect_timeout_s=3.0, manual_acks=True)
    assert inner.connect_timeout == 3.0
    assert inner._manual_ack is True


async def test_an_ack_after_the_loss_of_the_connection_goes_nowhere() -> None:
    client = aiomqtt.Client("localhost")
    prepare(client, connect_timeout_s=3.0, manual_acks=True)
    acknowledge(client, aiomqtt.Message("a/b", b"", qos=1, retain=False, mid=7, properties=None))
    assert client._client.socket() is None
