"""The ack-listener as a process, on real RabbitMQ and Mosquitto."""

import asyncio
import contextlib
import os
import signal
import sys
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import aiomqtt
import msgspec
import pytest

from laneway_local.stack import Stack
from laneway_shared.broker import Consumer, Delivery, ack_all, declare
from laneway_shared.lifecycle import ResultKind
from laneway_shared.messages import Heartbeat, ResultMessage, decode_heartbeat, decode_results
from laneway_shared.mqtt import parse_address
from laneway_shared.topology import Topology

PROGRAM = Path(sys.executable).with_name("laneway-ack-listener")


async def until(condition: Callable[[], object], what: str, within_s: float = 30.0) -> None:
    """Wait for a condition, with a bound."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            while not condition():  # noqa: ASYNC110 - conditions of other processes have no event
                await asyncio.sleep(0.02)
    assert condition(), f"not within {within_s} s: {what}"


class Stage:
    """What the listener puts on RabbitMQ, and the devices' side of MQTT."""

    def __init__(self, infra: Stack, prefix: str) -> None:
        self.infra = infra
        self.amqp_url = infra.urls["LANEWAY_AMQP_URL"]
        self.mqtt_url = infra.urls["LANEWAY_MQTT_URL"]
        self.topology = Topology(prefix=f"{prefix}-{uuid.uuid4().hex[:6]}")
        self.service = self.topology.prefix  # a session of its own on Mosquitto
        self.results: list[ResultMessage] = []
        self.dead: list[Delivery] = []
        self.heartbeats: list[Heartbeat] = []

    @contextlib.asynccontextmanager
    async def watching(self) -> AsyncIterator["Stage"]:
        """Collect everything from the queues while the block runs."""
        await declare(self.amqp_url, self.topology.exchanges, self.topology.queues())
        queues = {
            self.topology.result_queue: self._result,
            self.topology.dead_queue: self.dead.append,
            self.topology.state_queue: lambda d: self.heartbeats.append(decode_heartbeat(d.body)),
        }
        async with asyncio.TaskGroup() as tasks:
            running = []
            for queue, take in queues.items():
                consumer = Consumer(self.amqp_url, f"test {queue}", queue, prefetch=1000)
                running += [tasks.create_task(consumer.run()), tasks.create_task(self._collect(consumer, take))]
            try:
                yield self
            finally:
                for task in running:
                    task.cancel()

    async def _collect(self, consumer: Consumer, take: Callable[[Delivery], None]) -> None:
        async for batch in consumer.batches(100):
            for delivery in batch:
                take(delivery)
            await ack_all(batch)

    def _result(self, delivery: Delivery) -> None:
        for result in decode_results(delivery.body):
            assert isinstance(result, ResultMessage)
            self.results.append(result)

    @contextlib.asynccontextmanager
    async def listener(
        self, instance: str, *, stderr: int | None = None, **settings: str
    ) -> AsyncIterator[asyncio.subprocess.Process]:
        """Run a listener; at the end it is killed if it still runs."""
        process = await asyncio.create_subprocess_exec(
            PROGRAM,
            stderr=stderr,
            env={
                **os.environ,
                "LANEWAY_AMQP_URL": self.amqp_url,
                "LANEWAY_MQTT_URL": self.mqtt_url,
                "LANEWAY_TOPOLOGY_PREFIX": self.topology.prefix,
                "LANEWAY_SERVICE": self.service,
                "LANEWAY_INSTANCE": instance,
                "LANEWAY_HEARTBEAT_EVERY_S": "0.2",
                **settings,
            },
        )
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()

    def heard(self, instance: str, state: str = "online") -> bool:
        """Whether that instance has sent such a heartbeat."""
        return any(beat.instance == instance and beat.state == state for beat in self.heartbeats)

    async def listening(self, instance: str) -> None:
        """Wait until that instance is active."""
        await until(lambda: self.heard(instance), f"{instance} listens")

    @contextlib.asynccontextmanager
    async def device(self) -> AsyncIterator[aiomqtt.Client]:
        """A connection of devices."""
        address = parse_address(self.mqtt_url)
        async with aiomqtt.Client(
            address.host, address.port, protocol=aiomqtt.ProtocolVersion.V5, max_inflight_messages=20
        ) as client:
            client.pending_calls_threshold = 10_000
            yield client

    def missing(self, commands: list[str]) -> set[str]:
        """The commands whose result hasn't come."""
        return set(commands) - {result.command_id for result in self.results if result.command_id}


async def answer(client: aiomqtt.Client, at: str, command_id: str, **fields: object) -> None:
    """Let a lock answer an attempt."""
    body = {"msgId": f"{command_id}.1", "sn": at, "result": "ok", "value": "1", "reason": None} | fields
    await client.publish(f"ydlink/{at}/up/ack", msgspec.json.encode(body), qos=1)


@contextlib.asynccontextmanager
async def mosquitto_away(infra: Stack) -> AsyncIterator[None]:
    """Stop Mosquitto for the length of the block."""
    await asyncio.to_thread(infra.mosquitto.stop)
    try:
        yield
    finally:
        await asyncio.to_thread(infra.mosquitto.start)


def commands(count: int) -> list[str]:
    return [str(uuid.uuid4()) for _ in range(count)]


@pytest.fixture
def stage(infra: Stack, prefix: str) -> Stage:
    return Stage(infra, prefix)


@pytest.mark.parametrize("version", ["5", "3.1.1"])
async def test_an_answer_becomes_a_result_and_a_stop_is_clean(stage: Stage, version: str) -> None:
    (command,) = commands(1)
    running = stage.listener("only", LANEWAY_MQTT_VERSION=version)
    async with stage.watching(), running as process, stage.device() as device:
        await stage.listening("only")
        await answer(device, "A100", command, result="refused", value=None, reason="dead bolt set")
        await until(lambda: stage.results, "a result")
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 10) == 0
        await until(lambda: stage.heard("only", "stopping"), "the last word")
    beat = stage.heartbeats[0]
    assert (beat.kind, beat.service, beat.profiles) == ("ack-listener", stage.service, ["ydlink-lock"])
    (result,) = stage.results
    assert (result.status, result.command_id, result.attempt) == (ResultKind.FAILED, command, 1)
    assert (result.error_code, result.error_message, result.retryable) == ("DEVICE_REFUSED", "dead bolt set", False)
    assert (result.device_sn, result.instance) == ("A100", "only")
    assert result.finished_at is not None


async def test_the_first_heartbeat_is_not_lost_to_a_publisher_that_still_connects(stage: Stage) -> None:
    async with stage.watching(), stage.listener("only", LANEWAY_HEARTBEAT_EVERY_S="1000"):
        await stage.listening("only")


async def test_answers_that_come_while_rabbitmq_is_away_are_delivered_afterwards(stage: Stage) -> None:
    sent = commands(300)
    async with stage.watching(), stage.listener("only"), stage.device() as device:
        await stage.listening("only")
        await asyncio.gather(*(answer(device, "A100", command) for command in sent[:100]))
        await asyncio.to_thread(stage.infra.rabbitmq.stop)
        try:
            await asyncio.gather(*(answer(device, "A100", command) for command in sent[100:]))
        finally:
            await asyncio.to_thread(stage.infra.rabbitmq.start)
        await until(lambda: not stage.missing(sent), "all results", 60)
        before = len(stage.heartbeats)
        await until(lambda: len(stage.heartbeats) > before, "heartbeats go on")


async def test_a_killed_listener_loses_no_answer(stage: Stage) -> None:
    sent = commands(1000)
    async with stage.watching(), stage.device() as device:
        async with stage.listener("first", LANEWAY_ACK_BATCH="10") as first:
            await stage.listening("first")
            async with asyncio.TaskGroup() as tasks:
                for command in sent:
                    tasks.create_task(answer(device, "A100", command))
                await until(lambda: len(stage.results) >= 50, "some results")
                first.kill()
                await first.wait()
        assert stage.missing(sent), "it was killed too late to prove anything"
        async with stage.listener("second"):
            await until(lambda: not stage.missing(sent), "all results", 60)


async def test_one_replica_is_active_and_another_takes_over(stage: Stage) -> None:
    before, after = commands(50), commands(50)
    async with stage.watching(), stage.device() as device, stage.listener("first") as first:
        await stage.listening("first")
        async with stage.listener("second") as second:
            await asyncio.gather(*(answer(device, "A100", command) for command in before))
            await until(lambda: not stage.missing(before), "results of the first")
            # the claim is retried twice a second
            await until(lambda: len(stage.heartbeats) > 15, "some time")
            assert {beat.instance for beat in stage.heartbeats} == {"first"}
            assert {result.instance for result in stage.results} == {"first"}
            first.send_signal(signal.SIGSTOP)
            first.kill()
            await asyncio.gather(*(answer(device, "A100", command) for command in after))
            await until(lambda: not stage.missing(after), "results of the second")
            await stage.listening("second")
            second.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(second.wait(), 10) == 0


async def test_what_cannot_be_read_is_set_aside_once(stage: Stage) -> None:
    rubbish = [b"\x00\xff rubbish", b"", b'{"msgId":"1.1","sn":"A100","result":"ok"}', b"[" * 100_000, b"x" * 2_000_000]
    (command,) = commands(1)
    async with stage.watching(), stage.device() as device:
        async with stage.listener("first") as first:
            await stage.listening("first")
            for body in rubbish:
                await device.publish("ydlink/A100/up/ack", body, qos=1)
            await answer(device, "other", command, sn="A100")
            await answer(device, "A100", command)
            await until(lambda: len(stage.dead) > len(rubbish), "everything set aside")
            await until(lambda: stage.results, "the good answer behind")
            first.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(first.wait(), 10) == 0
        async with stage.listener("second"):  # inherits the session: nothing waits in it any more
            await stage.listening("second")
            await answer(device, "A100", command)
            await until(lambda: len(stage.results) > 1, "the next answer")
    assert [letter.body for letter in stage.dead[:4]] == rubbish[:4]
    assert len(stage.dead) == len(rubbish) + 1
    assert stage.dead[0].headers["x-laneway-queue"] == "mqtt:ydlink/A100/up/ack"
    assert "not JSON" in stage.dead[0].headers["x-laneway-reason"]
    assert "2000000 bytes" in stage.dead[4].headers["x-laneway-reason"]
    assert "'A100' answers on the topic of 'other'" in stage.dead[5].headers["x-laneway-reason"]


async def test_it_waits_for_brokers_that_are_away_at_its_start(stage: Stage) -> None:
    (command,) = commands(1)
    async with stage.watching(), contextlib.AsyncExitStack() as later:
        async with mosquitto_away(stage.infra):
            listener = await later.enter_async_context(stage.listener("only", stderr=asyncio.subprocess.PIPE))
            assert listener.stderr is not None
            async with asyncio.timeout(30):
                while b"mqtt.away" not in await listener.stderr.readline():
                    assert not listener.stderr.at_eof()
        await stage.listening("only")
        async with mosquitto_away(stage.infra):
            pass
        async with stage.device() as device:
            await answer(device, "A100", command)
            await until(lambda: not stage.missing([command]), "the result")


async def test_a_bad_setting_is_one_line_and_exit_code_1(stage: Stage) -> None:
    for name, value in (("LANEWAY_PROFILES", "no-such-lock"), ("LANEWAY_MQTT_URL", "http://user:hush@host/")):
        process = await asyncio.create_subprocess_exec(
            PROGRAM, env={**os.environ, name: value}, stderr=asyncio.subprocess.PIPE
        )
        _, said = await process.communicate()
        assert process.returncode == 1
        assert said.count(b"\n") == 1
        assert b"hush" not in said
