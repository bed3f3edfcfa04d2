"""The driver as a process, on a real RabbitMQ, with virtual devices."""

import asyncio
import contextlib
import json
import os
import secrets
import signal
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest

from laneway_local.stack import Stack
from laneway_shared import broker
from laneway_shared.messages import (
    CommandMessage,
    CommandType,
    Heartbeat,
    Payload,
    ResultMessage,
    Target,
    decode_heartbeat,
    decode_results,
    encode,
)
from laneway_shared.topology import Topology
from support.tcp_proxy import TcpProxy

DRIVER = Path(sys.executable).with_name("laneway-driver")


async def until(condition: Callable[[], object], *, within_s: float = 20.0) -> None:
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 - conditions of any kind
            await asyncio.sleep(0.01)


def command(device: str, value: str = "1", **changes: Any) -> CommandMessage:
    now = datetime.now(UTC)
    fields: dict[str, Any] = {
        "command_id": str(uuid.uuid4()),
        "attempt": 1,
        "tenant_id": 1,
        "type": CommandType.WRITE,
        "payload": Payload(kind="Write", device_id=1, point_id=2, value=value),
        "target": Target(device_sn=device, point="lock", address=changes.pop("address", {})),
        "retry_safety": "unsafe",
        "gate": "ack",
        "lane_key": f"device:{device}",
        "lane_token": 1,
        "occurred_at": now,
        "expire_at": now + timedelta(seconds=60),
        "published_at": now,
        "start_by": now + timedelta(seconds=15),
        "call_timeout": 10.0,
    }
    return CommandMessage(**fields | changes)


def just_published(message: CommandMessage) -> CommandMessage:
    """As the center would: the time on it is when it was claimed, however long ago a test made it."""
    return msgspec.structs.replace(message, published_at=datetime.now(UTC))


class Center:
    """Stands in for the center: sends commands, reads results, heartbeats and dead letters."""

    def __init__(self, url: str, topology: Topology) -> None:
        self.url = url
        self.topology = topology
        self.service = "virtual"
        self.results: list[ResultMessage] = []
        self.result_messages = 0
        self.heartbeats: list[Heartbeat] = []
        self.letters: list[tuple[bytes, dict[str, Any]]] = []
        self._publisher = broker.Publisher(url, "test center")

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["Center"]:
        await broker.declare(self.url, self.topology.exchanges, self.topology.center_queues)
        readers = {
            self.topology.result_queue: self._result,
            self.topology.state_queue: self._state,
            self.topology.dead_queue: self._letter,
        }
        async with self._publisher.running(), asyncio.TaskGroup() as tasks:
            assert await self._publisher.wait_connected(10)
            owned = []
            for queue, take in readers.items():
                consumer = broker.Consumer(self.url, f"test {queue}", queue, prefetch=100)
                owned += [tasks.create_task(consumer.run()), tasks.create_task(self._read(consumer, take))]
            yield self
            for task in owned:
                task.cancel()

    async def _read(self, consumer: broker.Consumer, take: Callable[[broker.Delivery], None]) -> None:
        async for batch in consumer.batches(100):
            for delivery in batch:
                take(delivery)
            await broker.ack_all(batch)

    def _result(self, delivery: broker.Delivery) -> None:
        self.result_messages += 1
        self.results += [result for result in decode_results(delivery.body) if isinstance(result, ResultMessage)]

    def _state(self, delivery: broker.Delivery) -> None:
        self.heartbeats.append(decode_heartbeat(delivery.body))

    def _letter(self, delivery: broker.Delivery) -> None:
        self.letters.append((delivery.body, delivery.headers))

    async def send(self, *messages: CommandMessage | bytes) -> None:
        async with asyncio.timeout(60):
            while not self._publisher.connected:  # noqa: ASYNC110 - RabbitMQ may just have been started again
                await asyncio.sleep(0.05)
        outcomes = await self._publisher.publish(
            [
                broker.Outgoing(
                    exchange=self.topology.command_exchange,
                    routing_key=self.topology.command_key(self.service),
                    body=message if isinstance(message, bytes) else encode(just_published(message)),
                    ttl_ms=15_000,
                )
                for message in messages
            ]
        )
        assert set(outcomes) == {broker.Outcome.CONFIRMED}

    def kinds(self, message: CommandMessage) -> list[str]:
        return [result.status.value for result in self.results if result.command_id == message.command_id]

    def online(self, instance: str) -> bool:
        return any(beat.instance == instance and beat.state == "online" for beat in self.heartbeats)


class DriverProcess:
    """A `laneway-driver`, its log and its journal."""

    def __init__(self, process: asyncio.subprocess.Process, instance: str, journal: Path) -> None:
        self.process = process
        self.instance = instance
        self._journal = journal
        self.ended_after_s = 0.0
        self.said = ""

    def executed(self) -> list[dict[str, Any]]:
        if not self._journal.exists():
            return []
        return [json.loads(line) for line in self._journal.read_text().splitlines()]

    async def says(self, words: str) -> None:
        """Wait for a line on standard error."""
        assert self.process.stderr is not None
        async with asyncio.timeout(20):
            while words not in self.said:
                line = await self.process.stderr.readline()
                assert line, self.said
                self.said += line.decode()

    async def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send the signal and wait for the exit; its status."""
        began = time.monotonic()
        if self.process.returncode is None:
            self.process.send_signal(number)
        return await self.wait(began)

    async def wait(self, began: float | None = None) -> int:
        _, said = await asyncio.wait_for(self.process.communicate(), 20)
        self.said += said.decode()
        self.ended_after_s = time.monotonic() - began if began else 0.0
        assert self.process.returncode is not None
        return self.process.returncode


@contextlib.asynccontextmanager
async def driver(center: Center, directory: Path, **settings: str) -> AsyncIterator[DriverProcess]:
    instance = f"d{secrets.token_hex(3)}"
    journal = directory / "journal.jsonl"
    env = os.environ | {
        "LANEWAY_AMQP_URL": center.url,
        "LANEWAY_TOPOLOGY_PREFIX": center.topology.prefix,
        "LANEWAY_SERVICE": center.service,
        "LANEWAY_ADAPTER": "virtual",
        "LANEWAY_INSTANCE": instance,
        "LANEWAY_HEARTBEAT_EVERY_S": "0.5",
        "LANEWAY_VIRTUAL_JOURNAL": str(journal),
        **settings,
    }
    process = await asyncio.create_subprocess_exec(DRIVER, env=env, stderr=asyncio.subprocess.PIPE)
    started = DriverProcess(process, instance, journal)
    try:
        yield started
    finally:
        if process.returncode is None:
            await started.end(signal.SIGKILL)


@contextlib.asynccontextmanager
async def online(center: Center, directory: Path, **settings: str) -> AsyncIterator[DriverProcess]:
    async with driver(center, directory, **settings) as started:
        await until(lambda: center.online(started.instance) or started.process.returncode is not None)
        yield started


@pytest.fixture
async def center(amqp_url: str, prefix: str) -> AsyncIterator[Center]:
    async with Center(amqp_url, Topology(prefix=f"{prefix}-{secrets.token_hex(2)}")).running() as center:
        yield center


async def test_an_unsafe_write_is_announced_run_once_answered_and_acked(center: Center, tmp_path: Path) -> None:
    async with online(center, tmp_path) as process:
        message = command("A100")
        await center.send(message)
        await until(lambda: center.kinds(message) == ["STARTED", "SUCCESS"])
        assert center.results[-1].response_value == "1"
        assert [entry["commandId"] for entry in process.executed()] == [message.command_id]
        assert await process.end() == 0
    async with online(center, tmp_path):  # nothing came back
        await center.send(message := command("A100", lane_token=2))
        await until(lambda: center.kinds(message))
        assert "REDELIVERED" not in {result.status for result in center.results}


async def test_many_commands_are_run_once_each_and_answered_together(center: Center, tmp_path: Path) -> None:
    async with online(center, tmp_path, LANEWAY_CAPACITY="50") as process:
        messages = [command(f"D{number}", retry_safety="safe") for number in range(500)]
        await center.send(*messages)
        await until(lambda: len(center.results) >= 500)
        assert {result.command_id for result in center.results} == {message.command_id for message in messages}
        assert {result.status.value for result in center.results} == {"SUCCESS"}
        assert center.result_messages < 500
        assert len(process.executed()) == 500
        beat = center.heartbeats[-1]
        assert (beat.capacity, beat.kind) == (50, "driver")


async def test_rubbish_is_set_aside_with_a_reason_and_the_driver_goes_on(center: Center, tmp_path: Path) -> None:
    async with online(center, tmp_path) as process:
        message = command("A100")
        await center.send(b"\x00rubbish", b'{"schemaVersion":9}', message)
        await until(lambda: "SUCCESS" in center.kinds(message) and len(center.letters) == 2)
        [(_, first), (body, second)] = sorted(center.letters)
        assert body == b'{"schemaVersion":9}'
        assert "not JSON" in first["x-laneway-reason"]
        assert "newer" in second["x-laneway-reason"]
        assert second["x-laneway-by"] == process.instance


async def test_a_killed_drivers_write_is_not_run_by_the_next(center: Center, tmp_path: Path) -> None:
    message = command("A100", address={"latencyMs": 60_000})
    async with online(center, tmp_path) as killed:
        await center.send(message)
        await until(lambda: center.kinds(message) == ["STARTED"])
        await killed.end(signal.SIGKILL)
    async with online(center, tmp_path) as process:
        await until(lambda: center.kinds(message) == ["STARTED", "REDELIVERED"])
        assert process.executed() == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_stop_finishes_what_runs_gives_back_the_rest_and_says_so(
    center: Center, tmp_path: Path, number: signal.Signals
) -> None:
    running = command("A100", address={"latencyMs": 700})
    waiting = command("A100", lane_token=2)
    async with online(center, tmp_path) as process:
        await center.send(running, waiting)
        await until(lambda: center.kinds(running) == ["STARTED"])
        assert await process.end(number) == 0
        await until(lambda: center.kinds(running) == ["STARTED", "SUCCESS"])
        await until(lambda: center.kinds(waiting) == ["RELEASED"])
        await until(lambda: center.heartbeats[-1].state == "stopping")
        assert [entry["commandId"] for entry in process.executed()] == [running.command_id]
        assert process.ended_after_s < 5


async def test_a_stop_is_bounded_and_what_it_cuts_off_is_unknown(center: Center, tmp_path: Path) -> None:
    message = command("A100", address={"silent": True})
    async with online(center, tmp_path, LANEWAY_DRAIN_S="0.3") as process:
        await center.send(message)
        await until(lambda: center.kinds(message) == ["STARTED"])
        assert await process.end() == 0
        await until(lambda: center.kinds(message) == ["STARTED", "UNKNOWN"])
        assert process.ended_after_s < 5


async def test_a_lost_connection_in_mid_call_loses_no_result_and_doubles_no_call(
    center: Center, tmp_path: Path
) -> None:
    address = urlsplit(center.url)
    async with TcpProxy(address.hostname or "", address.port or 0).running() as proxy:
        url = center.url.replace(f"{address.hostname}:{address.port}", f"127.0.0.1:{proxy.port}")
        async with online(center, tmp_path, LANEWAY_AMQP_URL=url) as process:
            running = command("A100", address={"latencyMs": 500})
            waiting = command("A100", lane_token=2)
            await center.send(running, waiting)
            await until(lambda: center.kinds(running) == ["STARTED"])
            proxy.cut()
            await until(process.executed)
            proxy.mend()
            await until(lambda: "SUCCESS" in center.kinds(running))
            await until(lambda: center.kinds(waiting) == ["REDELIVERED"])
            after = command("B200")
            await center.send(after)
            await until(lambda: center.kinds(after) == ["STARTED", "SUCCESS"])
            executed = [entry["commandId"] for entry in process.executed()]
            assert executed == [running.command_id, after.command_id]


async def test_a_restart_of_rabbitmq_in_mid_call_loses_no_result(center: Center, tmp_path: Path, infra: Stack) -> None:
    async with online(center, tmp_path) as process:
        running = command("A100", address={"latencyMs": 1000})
        await center.send(running)
        await until(lambda: center.kinds(running) == ["STARTED"])
        await asyncio.to_thread(infra.rabbitmq.stop)
        await until(process.executed)
        await asyncio.to_thread(infra.rabbitmq.start)
        await until(lambda: "SUCCESS" in center.kinds(running))
        center.heartbeats.clear()
        await until(lambda: center.online(process.instance))
        after = command("B200")
        await center.send(after)
        await until(lambda: center.kinds(after) == ["STARTED", "SUCCESS"])
        assert len(process.executed()) == 2
        assert await process.end() == 0


async def test_a_silent_device_delays_nobody_else(center: Center, tmp_path: Path) -> None:
    async with online(center, tmp_path):
        silent = command("A100", address={"silent": True}, call_timeout=1.0)
        others = [command(f"B{number}") for number in range(20)]
        await center.send(silent, *others)
        await until(lambda: all(center.kinds(other) == ["STARTED", "SUCCESS"] for other in others))
        assert center.kinds(silent) == ["STARTED"]
        await until(lambda: center.kinds(silent) == ["STARTED", "UNKNOWN"])


async def test_it_waits_for_a_broker_that_is_not_there_and_can_be_stopped_meanwhile(
    center: Center, tmp_path: Path
) -> None:
    address = urlsplit(center.url)
    async with TcpProxy(address.hostname or "", address.port or 0).running() as proxy:
        url = center.url.replace(f"{address.hostname}:{address.port}", f"127.0.0.1:{proxy.port}")
        proxy.cut()
        async with driver(center, tmp_path, LANEWAY_AMQP_URL=url) as waits:
            await waits.says("driver.waits")
            proxy.mend()
            await until(lambda: center.online(waits.instance))
            assert await waits.end() == 0
        proxy.cut()
        async with driver(center, tmp_path, LANEWAY_AMQP_URL=url) as waits:
            await waits.says("driver.waits")
            assert await waits.end() == 0
            assert waits.ended_after_s < 3


async def test_a_queue_with_other_arguments_stops_it_with_one_line(center: Center, tmp_path: Path) -> None:
    own = center.topology.command_queue_of(center.service)
    other = type(own)(name=own.name, exchange=own.exchange, binding=own.binding, arguments={})
    await broker.declare(center.url, center.topology.exchanges, [other])
    async with driver(center, tmp_path) as process:
        assert await process.wait() == 1
    last = process.said.splitlines()[-1]
    assert last.startswith("laneway-driver: TOPOLOGY_MISMATCH: RabbitMQ has it otherwise: ")
    assert "Traceback" not in process.said


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (
            {"LANEWAY_ADAPTER": "no-such"},
            "laneway-driver: SETTINGS_INVALID: LANEWAY_ADAPTER: no adapter 'no-such' is installed; ",
        ),
        ({"LANEWAY_SERVICE": "a b"}, "laneway-driver: SETTINGS_INVALID: LANEWAY_SERVICE: "),
        ({"LANEWAY_CAPACITY": "0"}, "laneway-driver: SETTINGS_INVALID: LANEWAY_CAPACITY: "),
    ],
)
async def test_a_setting_that_cant_be_used_stops_it_with_one_line(
    center: Center, tmp_path: Path, settings: dict[str, str], line: str
) -> None:
    async with driver(center, tmp_path, **settings) as process:
        assert await process.wait() == 1
    assert process.said.splitlines()[-1].startswith(line)
    assert "Traceback" not in process.said
