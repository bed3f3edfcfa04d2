"""The driver's `mqtt` adapter on a real Mosquitto, and on a broker that behaves badly."""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any, Self

import aiomqtt
import msgspec
import pytest

from conformance.adapter_contract import AdapterBench, AdapterContract, started
from laneway_driver.adapters.mqtt import MqttAdapter, factory
from laneway_driver.port import AdapterContext, Call, DeviceAdapter, NotSent, Refused, Transmitted, Unknown
from laneway_local.stack import Stack
from laneway_shared.messages import Target
from laneway_shared.mqtt import MqttSettings, parse_address
from laneway_shared.profiles import Profile, shipped_profiles

LOCK = {profile.name: profile for profile in shipped_profiles()}["ydlink-lock"]
QOS1_LOCK = Profile.model_validate(
    LOCK.model_dump() | {"name": "qos1-lock", "command": LOCK.command.model_dump() | {"qos": 1}}
)
CONNACK = b"\x20\x03\x00\x00\x00"


def new_target(sn: str = "A100", profile: str = LOCK.name) -> Target:
    return Target(device_sn=sn, point="lock", profile=profile)


def new_call(seconds: float = 10.0) -> Call:
    now = datetime.now(UTC)
    return Call(
        tenant_id=1,
        command_id=str(uuid.uuid4()),
        attempt=1,
        begin_by=asyncio.get_running_loop().time() + seconds,
        deadline=asyncio.get_running_loop().time() + seconds,
        start_by=now + timedelta(seconds=seconds),
        expire_at=now + timedelta(seconds=60),
    )


def new_adapter(url: str, version: str = "5") -> MqttAdapter:
    settings = MqttSettings.model_validate({"mqtt_url": url, "mqtt_version": version})
    return MqttAdapter(settings, {LOCK.name: LOCK, QOS1_LOCK.name: QOS1_LOCK}, client_id=f"test-{uuid.uuid4()}")


class TestMqttAdapter(AdapterContract):
    @pytest.fixture(params=[LOCK.name, QOS1_LOCK.name])
    def bench(self, mqtt_url: str, request: pytest.FixtureRequest) -> AdapterBench:
        return AdapterBench(
            adapter=new_adapter(mqtt_url),
            answering=new_target(profile=request.param),
            wrote=(Transmitted,),
            readable=new_target(profile=request.param),
            did_read=(Transmitted,),
            unusable=new_target(sn="+", profile=request.param),
        )


async def well(adapter: DeviceAdapter, *, wanted: bool = True) -> None:
    """Wait until the adapter is well, or isn't."""
    async with asyncio.timeout(20):
        while (adapter.health() is None) is not wanted:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def device(url: str) -> AsyncIterator[aiomqtt.Client]:
    """A subscriber to all commands for locks."""
    address = parse_address(url)
    async with aiomqtt.Client(address.host, address.port, protocol=aiomqtt.ProtocolVersion.V5) as client:
        await client.subscribe("ydlink/+/down", qos=1)
        yield client


async def received(client: aiomqtt.Client) -> aiomqtt.Message:
    async with asyncio.timeout(10):
        return await anext(client.messages)


def body(message: aiomqtt.Message) -> Any:
    return msgspec.json.decode(message.payload)


@pytest.mark.parametrize("version", ["5", "3.1.1"])
@pytest.mark.parametrize("profile", [LOCK, QOS1_LOCK], ids=lambda profile: profile.name)
async def test_a_command_is_transmitted_as_its_profile_says(mqtt_url: str, version: str, profile: Profile) -> None:
    call = new_call()
    async with device(mqtt_url) as lock, started(new_adapter(mqtt_url, version)) as adapter:
        outcome = await adapter.write(new_target(profile=profile.name), "1", call)
        message = await received(lock)
        assert await adapter.read(new_target(profile=profile.name), new_call()) == Transmitted(5.0)
        reading = await received(lock)
    assert outcome == Transmitted(5.0)
    assert str(message.topic) == "ydlink/A100/down"
    assert (message.qos, message.retain) == (profile.command.qos, False)
    assert body(message) == {
        "msgId": f"{call.command_id}.1",
        "cmd": "lock",
        "op": "write",
        "value": "1",
        "validUntil": round(call.start_by.timestamp() * 1000),
    }
    assert (body(reading)["op"], body(reading)["value"]) == ("read", None)
    expiry: Any = getattr(message.properties, "MessageExpiryInterval", None)
    assert expiry is None if version == "3.1.1" else 8 <= expiry <= 10


@pytest.mark.parametrize("profile", [LOCK.name, QOS1_LOCK.name])
async def test_nothing_old_goes_out_after_a_reconnect(infra: Stack, mqtt_url: str, profile: str) -> None:
    async with started(new_adapter(mqtt_url)) as adapter:
        await asyncio.to_thread(infra.mosquitto.stop)
        try:
            outcomes = [await adapter.write(new_target(profile=profile), "1", new_call()) for _ in range(3)]
            await well(adapter, wanted=False)
            outcomes += [await adapter.write(new_target(profile=profile), "1", new_call()) for _ in range(3)]
        finally:
            await asyncio.to_thread(infra.mosquitto.start)
        async with device(mqtt_url) as lock:
            await well(adapter)
            new = new_call()
            assert await adapter.write(new_target(profile=profile), "2", new) == Transmitted(5.0)
            assert body(await received(lock))["msgId"] == f"{new.command_id}.1"
    assert all(isinstance(outcome, NotSent | Unknown) or profile == LOCK.name for outcome in outcomes[:3])
    assert all(isinstance(outcome, NotSent) and outcome.code == "MQTT_AWAY" for outcome in outcomes[3:])


async def test_an_unknown_profile_and_a_name_with_wildcards_are_not_sent(mqtt_url: str) -> None:
    async with device(mqtt_url) as lock, started(new_adapter(mqtt_url)) as adapter:
        unknown = await adapter.write(new_target(profile="toaster"), "1", new_call())
        assert isinstance(unknown, NotSent)
        assert unknown.code == "PROFILE_UNKNOWN"
        for name in ("+", "#", "A/B", "", "A" * 65, "$SYS", "A\x00"):
            refused = await adapter.write(new_target(sn=name), "1", new_call())
            assert isinstance(refused, Refused)
            assert (refused.code, refused.retryable) == ("COMMAND_NOT_RENDERABLE", False)
        assert await adapter.write(new_target(sn="B200"), "1", new_call()) == Transmitted(5.0)
        assert str((await received(lock)).topic) == "ydlink/B200/down"


async def test_many_at_once_all_arrive(mqtt_url: str) -> None:
    calls = [new_call() for _ in range(300)]
    async with device(mqtt_url) as lock, started(new_adapter(mqtt_url)) as adapter:
        for profile in (LOCK.name, QOS1_LOCK.name):
            outcomes = await asyncio.gather(
                *(adapter.write(new_target(f"S{n}", profile), "1", call) for n, call in enumerate(calls))
            )
            assert set(outcomes) == {Transmitted(5.0)}
            assert {body(await received(lock))["msgId"] for _ in calls} == {f"{c.command_id}.1" for c in calls}


class BadBroker:
    """Accepts a connection and then does nothing more, or cuts it."""

    def __init__(self) -> None:
        self.connections: list[asyncio.StreamWriter] = []
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1024)
        return self

    async def __aexit__(self, *_: object) -> None:
        for writer in self.connections:
            writer.transport.abort()
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"mqtt://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections.append(writer)
        await reader.read(1)
        writer.write(CONNACK)
        await writer.drain()  # from here on nothing is read: the limit of the reader stops the transport


@pytest.mark.parametrize("profile", [LOCK.name, QOS1_LOCK.name])
async def test_a_connection_lost_in_mid_publish_is_never_told_as_not_sent(profile: str) -> None:
    async with BadBroker() as broker, started(new_adapter(broker.url)) as adapter:
        broker.connections[0].transport.abort()
        outcome = await adapter.write(new_target(profile=profile), "1", new_call())
    # with QoS 0 the kernel may have taken it before it knew
    assert isinstance(outcome, Unknown) or (profile == LOCK.name and outcome == Transmitted(5.0))


async def test_a_broker_that_stops_reading_makes_unknowns_and_a_new_connection() -> None:
    async with BadBroker() as broker, started(new_adapter(broker.url)) as adapter:
        began = asyncio.get_running_loop().time()
        outcomes = await asyncio.gather(
            *(adapter.write(new_target(), "x" * 4096, new_call(seconds=1.5)) for _ in range(3000))
        )
        assert asyncio.get_running_loop().time() - began < 8
        kinds = {type(outcome) for outcome in outcomes}
        assert Unknown in kinds
        assert kinds <= {Transmitted, Unknown, NotSent}
        async with asyncio.timeout(20):
            while len(broker.connections) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.02)


async def test_a_cancelled_call_leaves_nothing_that_could_go_out_later() -> None:
    async with BadBroker() as broker, started(new_adapter(broker.url)) as adapter:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.1):
                await adapter.write(new_target(profile=QOS1_LOCK.name), "1", new_call())
        await well(adapter, wanted=False)


async def test_stopping_while_the_broker_is_away_is_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    async with BadBroker() as broker:
        url = broker.url
    monkeypatch.setenv("LANEWAY_MQTT_URL", url)
    adapter = factory(AdapterContext(service="mqtt", instance="test"))
    await adapter.start()
    assert adapter.health() == "not connected to MQTT"
    assert isinstance(await adapter.write(new_target(), "1", new_call()), NotSent)
    async with asyncio.timeout(5):
        await adapter.stop()
