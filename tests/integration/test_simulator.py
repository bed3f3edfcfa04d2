"""The simulator as a process on a real Mosquitto."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import aiomqtt
import httpx
import pytest

from laneway_local import services
from laneway_local.services import Service
from laneway_local.stack import Stack

LIMIT_S = 30.0  # bound of every wait
SIMULATOR = Service(name="simulator-alone", command=("laneway-simulator",), serves_http=True)


@pytest.fixture(scope="module")
def simulator(infra: Stack) -> Iterator[Stack]:
    infra.start_service(SIMULATOR, LANEWAY_SIMULATOR_LATENCY_MIN_MS="0", LANEWAY_SIMULATOR_LATENCY_MAX_MS="5")
    yield infra
    infra.stop_service(SIMULATOR.name)


@pytest.fixture
async def http(simulator: Stack) -> AsyncIterator[httpx.AsyncClient]:
    url = simulator.service_url(SIMULATOR.name)
    async with httpx.AsyncClient(base_url=url, timeout=LIMIT_S, trust_env=False) as client:
        await until(lambda: is_ready(client))
        yield client


async def is_ready(http: httpx.AsyncClient) -> bool:
    return (await http.get("/readyz")).status_code == 200


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not await condition():  # noqa: ASYNC110 - another process changes it
            await asyncio.sleep(0.02)


class Platform:
    """The other side: commands the locks and hears their answers, which carry QoS 1."""

    def __init__(self, client: aiomqtt.Client) -> None:
        self._client = client

    async def command(self, sn: str, **changes: Any) -> str:
        msg_id = f"{uuid4()}.1"
        command = {
            "msgId": msg_id,
            "cmd": "lock",
            "op": "write",
            "value": "1",
            "validUntil": int(time.time() * 1000) + 60_000,
        }
        await self.publish(sn, json.dumps(command | changes).encode())
        return str(changes.get("msgId", msg_id))

    async def publish(self, sn: str, payload: bytes) -> None:
        await self._client.publish(f"ydlink/{sn}/down", payload, qos=0)

    async def answers(self, count: int) -> list[dict[str, Any]]:
        """The next answers of any lock."""
        found: list[dict[str, Any]] = []
        async with asyncio.timeout(LIMIT_S):
            async for message in self._client.messages:
                assert message.qos == 1
                assert isinstance(message.payload, bytes)
                found.append(json.loads(message.payload))
                if len(found) == count:
                    break
        return found


@asynccontextmanager
async def platform(url: str, topic: str = "ydlink/+/up/ack") -> AsyncIterator[Platform]:
    parts = urlsplit(url)
    assert parts.hostname
    async with aiomqtt.Client(
        parts.hostname, parts.port or 1883, identifier=f"test-{uuid4()}", protocol=aiomqtt.ProtocolVersion.V5
    ) as client:
        await client.subscribe(topic, qos=1)
        yield Platform(client)


def new_sn() -> str:
    return f"T-{uuid4().hex[:12]}"


async def journal(http: httpx.AsyncClient, sn: str, **filters: Any) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = (await http.get(f"/devices/{sn}/journal", params=filters)).json()["entries"]
    return entries


async def has(http: httpx.AsyncClient, sn: str, event: str) -> bool:
    return bool(await journal(http, sn, event=event))


async def test_a_command_is_done_answered_and_journaled(http: httpx.AsyncClient, mqtt_url: str) -> None:
    sn = new_sn()
    async with platform(mqtt_url, f"ydlink/{sn}/up/ack") as side:
        written = await side.command(sn)
        read = await side.command(sn, op="read", value=None)

        assert await side.answers(2) == [
            {"msgId": each, "sn": sn, "result": "ok", "value": "1", "reason": None} for each in (written, read)
        ]

    entries = await journal(http, sn)
    assert [(entry["event"], entry["msgId"], entry["op"]) for entry in entries if entry["msgId"] == written] == [
        (event, written, "write") for event in ("received", "executed", "answered")
    ]
    assert abs(entries[0]["epochMs"] / 1000 - time.time()) < LIMIT_S


async def test_a_doubled_command_is_two_executions(http: httpx.AsyncClient, mqtt_url: str) -> None:
    sn = new_sn()
    async with platform(mqtt_url, f"ydlink/{sn}/up/ack") as side:
        msg_id = await side.command(sn, cmd="unlock")
        await side.command(sn, cmd="unlock", msgId=msg_id)
        await side.answers(2)

    executed = await journal(http, sn, event="executed")
    assert [(entry["msgId"], entry["detail"]) for entry in executed] == [(msg_id, "opened")] * 2


async def test_faults_by_request(http: httpx.AsyncClient, mqtt_url: str) -> None:
    sn = new_sn()
    async with platform(mqtt_url, f"ydlink/{sn}/up/ack") as side:
        await http.put(f"/devices/{sn}/behaviour", json={"refuse": True, "duplicateAck": True, "times": 1})
        refused = await side.command(sn)
        assert [(each["msgId"], each["result"]) for each in await side.answers(2)] == [(refused, "refused")] * 2

        await http.put(f"/devices/{sn}/behaviour", json={"silent": "after", "times": 1})
        silent = await side.command(sn)
        await http.put(f"/devices/{new_sn()}/behaviour", json={"busy": True})
        spoken = await side.command(sn)
        assert [each["msgId"] for each in await side.answers(1)] == [spoken]

    assert [entry["msgId"] for entry in await journal(http, sn, event="executed")] == [silent, spoken]


async def test_an_answer_by_hand_reaches_the_platform(http: httpx.AsyncClient, mqtt_url: str) -> None:
    sn = new_sn()
    async with platform(mqtt_url, f"ydlink/{sn}/up/ack") as side:
        sent = await http.post(f"/devices/{sn}/acks", json={"msgId": "late.1", "result": "working"})

        assert sent.status_code == 202
        assert await side.answers(1) == [
            {"msgId": "late.1", "sn": sn, "result": "working", "value": None, "reason": None}
        ]


async def test_rubbish_and_expired_commands_are_never_done(http: httpx.AsyncClient, mqtt_url: str) -> None:
    sn = new_sn()
    async with platform(mqtt_url, f"ydlink/{sn}/up/ack") as side:
        await side.publish(sn, b"\x00\xff")
        await side.publish(sn, b"")
        await side.command(sn, validUntil=1)
        done = await side.command(sn)
        assert [each["msgId"] for each in await side.answers(1)] == [done]

    ignored = await journal(http, sn, event="ignored")
    assert ["not JSON" in entry["detail"] for entry in ignored] == [True, True, False]
    assert ignored[2]["detail"] == "validUntil had passed on arrival"


async def test_a_burst_is_not_dropped_and_stays_in_order(http: httpx.AsyncClient, mqtt_url: str) -> None:
    locks = [new_sn() for _ in range(100)]
    sent: dict[str, list[str]] = {sn: [] for sn in locks}
    await http.delete("/journal")
    async with platform(mqtt_url) as side:
        for n in range(2_000):
            sn = locks[n % len(locks)]
            sent[sn].append(await side.command(sn))
        answered = Counter(each["msgId"] for each in await side.answers(2_000))

    assert answered == Counter(msg_id for ids in sent.values() for msg_id in ids)
    page = (await http.get("/journal", params={"event": "executed", "limit": 100_000})).json()
    done: dict[str, list[str]] = {sn: [] for sn in locks}
    for entry in page["entries"]:
        done[entry["sn"]].append(entry["msgId"])
    assert done == sent
    assert page["cutEntries"] == 0


async def test_a_burst_on_one_lock_waits_its_turn(http: httpx.AsyncClient, mqtt_url: str) -> None:
    sn = new_sn()
    await http.put(f"/devices/{sn}/behaviour", json={"latencyMs": 0})
    async with platform(mqtt_url, f"ydlink/{sn}/up/ack") as side:
        sent = [await side.command(sn) for _ in range(2_000)]
        assert [each["msgId"] for each in await side.answers(2_000)] == sent


async def test_it_comes_back_when_mosquitto_does(simulator: Stack, http: httpx.AsyncClient, mqtt_url: str) -> None:
    if simulator.mosquitto not in simulator.servers.values():
        pytest.skip("this Mosquitto isn't ours to stop")
    simulator.mosquitto.stop()

    async def is_missed() -> bool:
        return not await is_ready(http)

    await until(is_missed)
    assert (await http.get("/healthz")).status_code == 200
    assert (await http.post("/devices/A/acks", content=b"x")).json()["code"] == "BROKER_AWAY"
    simulator.mosquitto.start()
    await until(lambda: is_ready(http))

    sn = new_sn()
    async with platform(mqtt_url, f"ydlink/{sn}/up/ack") as side:
        await side.command(sn)
        assert [each["result"] for each in await side.answers(1)] == ["ok"]


async def test_what_locks_received_before_a_crash_of_mosquitto_is_done_and_answered_after_it(
    simulator: Stack, http: httpx.AsyncClient, mqtt_url: str
) -> None:
    if simulator.mosquitto not in simulator.servers.values():
        pytest.skip("this Mosquitto isn't ours to kill")
    locks = [new_sn() for _ in range(20)]
    for sn in locks:
        await http.put(f"/devices/{sn}/behaviour", json={"latencyMs": 20})
    async with platform(mqtt_url) as side:
        for n in range(1_000):
            await side.command(locks[n % len(locks)])
        await until(lambda: has(http, locks[0], "answered"))
        simulator.mosquitto.kill()
        with pytest.raises(aiomqtt.MqttError):
            await side.answers(1_000)
    simulator.mosquitto.start()

    async def are_done() -> bool:
        views = [(await http.get(f"/devices/{sn}")).json() for sn in locks]
        return not any(view["atWork"] for view in views)

    await until(are_done)
    for sn in locks:
        happened = Counter(entry["event"] for entry in await journal(http, sn))
        assert happened["received"] == happened["executed"] == happened["answered"]
        assert not happened["ignored"]


def run_alone(**settings: str) -> subprocess.Popen[str]:
    return subprocess.Popen(  # noqa: S603 - our own program
        [services.script("laneway-simulator")],
        env=os.environ | {"LANEWAY_HTTP_HOST": "127.0.0.1", "LANEWAY_HTTP_PORT": "0"} | settings,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_cleanly_even_without_a_broker(number: signal.Signals) -> None:
    with run_alone(LANEWAY_MQTT_URL="mqtt://127.0.0.1:1") as process:
        try:
            assert process.stderr is not None
            assert any("mqtt.away" in line for line in process.stderr)
            process.send_signal(number)
            _, errors = process.communicate(timeout=LIMIT_S)
        finally:
            process.kill()
    assert process.returncode == 0
    assert "Traceback" not in errors


def test_it_says_in_one_line_why_it_cannot_start() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for settings, reason in (
            ({"LANEWAY_HTTP_PORT": port}, f"can't listen on 127.0.0.1 port {port}"),
            ({"LANEWAY_MQTT_URL": "amqp://x"}, "LANEWAY_MQTT_URL: "),
            ({"LANEWAY_SIMULATOR_REFUSE_RATE": "2"}, "LANEWAY_SIMULATOR_REFUSE_RATE"),
        ):
            with run_alone(**settings) as process:
                _, errors = process.communicate(timeout=LIMIT_S)
            assert process.returncode == 1
            assert reason in errors
            assert len(errors.splitlines()) == 1
