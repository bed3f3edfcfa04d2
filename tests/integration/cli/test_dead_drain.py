"""`laneway dead drain` on a real RabbitMQ: into a file, and back to the dead exchange."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import aio_pika
import pytest
from aio_pika.abc import AbstractChannel

from laneway_local.ports import free_port
from laneway_local.services import script
from laneway_local.stack import AMQP_URL, Stack
from laneway_shared.broker import declare
from laneway_shared.broker.letters import RawLetter, take_letters
from laneway_shared.topology import Topology
from support.command_line import Ended, environment, laneway
from support.laneway import until

COMMAND_ID = "0190c3e2-7b1c-7000-8000-3f2a9d5c1e77"
DEATH = {
    "count": 1,
    "reason": "expired",
    "queue": "dc3.q.point_command.mqtt",
    "time": datetime(2026, 1, 31, 17, 1, 25, tzinfo=UTC),
    "exchange": "dc3.e.point_command",
    "routing-keys": ["dc3.r.point_command.mqtt"],
    "original-expiration": "10000",
}


class Broker:
    """The dead exchange and queue of one test, and a channel."""

    def __init__(self, channel: AbstractChannel, topology: Topology, names: dict[str, str]) -> None:
        self.channel, self.topology, self.names = channel, topology, names

    async def put(self, *bodies: bytes, **properties: object) -> None:
        exchange = await self.channel.get_exchange(self.topology.dead_exchange, ensure=False)
        for body in bodies:
            message = aio_pika.Message(body, delivery_mode=2, **properties)  # type: ignore[arg-type]
            await exchange.publish(message, "dc3.r.point_command.mqtt")

    async def count(self, queue: str | None = None) -> int:
        declared = await self.channel.declare_queue(queue or self.topology.dead_queue, passive=True)
        return declared.declaration_result.message_count or 0

    async def taken(self) -> list[RawLetter]:
        found: list[RawLetter] = []
        await take_letters(
            self.names[AMQP_URL], self.topology.dead_queue, found.extend, asyncio.Event(),
            waiting=lambda _: None, force=True,
        )  # fmt: skip
        return found

    async def drain(self, way: str, file: Path, *more: str) -> Ended:
        return await laneway("dead", "drain", way, str(file), *more, **self.names)


@pytest.fixture
async def broker(amqp_url: str, prefix: str) -> AsyncIterator[Broker]:
    topology = Topology(prefix=prefix)
    await declare(amqp_url, topology.exchanges, topology.queues(("mqtt",)))
    async with await aio_pika.connect(amqp_url) as connection:
        channel = await connection.channel()
        yield Broker(channel, topology, {AMQP_URL: amqp_url, "LANEWAY_TOPOLOGY_PREFIX": prefix})
        for queue in topology.queues(("mqtt",)):
            await channel.queue_delete(queue.name)
        for exchange in topology.exchanges:
            await channel.exchange_delete(exchange.name)


def bodies(count: int) -> list[bytes]:
    return [f'{{"n":{n}}}'.encode() for n in range(count)]


def lines(file: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in file.read_bytes().splitlines()]


async def test_all_of_a_letter_goes_into_the_file_and_back(broker: Broker, tmp_path: Path) -> None:
    await broker.put(
        b'{"schemaVersion":1}', message_id="m-1", correlation_id=COMMAND_ID, content_type="application/json",
        timestamp=datetime(2026, 1, 31, 17, 1, 20, tzinfo=UTC), priority=3, type="attempt",
        headers={"x-death": [DEATH], "traceparent": "00-1", "raw": bytearray(b"\xff\x00"), "n": 7,
                 "price": Decimal("1.5"),
                 "$time": {"$bytes": True}, "none": None},
    )  # fmt: skip
    await broker.put(b"\xff\x00rubbish")
    file = tmp_path / "letters.ndjson"
    drained = await broker.drain("--to-file", file)
    assert (drained.code, drained.errors) == (0, "")
    assert drained.out == f"2 letters drained into {file}, 2 in it now.\n"
    assert file.stat().st_mode & 0o777 == 0o600
    assert await broker.count() == 0
    first, second = lines(file)
    assert (first["routingKey"], first["messageId"]) == ("dc3.r.point_command.mqtt", "m-1")
    assert first["queue"] == broker.topology.dead_queue
    assert second["body"] == "/wBydWJiaXNo"

    back = await broker.drain("--from-file", file, "--output", "json")
    assert (back.code, back.errors) == (0, "")
    assert json.loads(back.out) == {"file": str(file), "givenBack": 2, "before": 0, "left": 0}
    assert await broker.count(broker.topology.command_queue("mqtt")) == 0, "never to the command exchange"
    letter, rubbish = await broker.taken()
    assert letter.body == b'{"schemaVersion":1}'
    assert letter.headers == {
        "x-death": [DEATH], "traceparent": "00-1", "raw": bytearray(b"\xff\x00"), "n": 7, "price": Decimal("1.5"),
        "$time": {"$bytes": True}, "none": None,
    }  # fmt: skip
    assert (letter.message_id, letter.timestamp) == ("m-1", datetime(2026, 1, 31, 17, 1, 20, tzinfo=UTC))
    assert letter.properties == {
        "content_type": "application/json", "correlation_id": COMMAND_ID, "priority": 3, "type": "attempt",
    }  # fmt: skip
    assert rubbish.body == b"\xff\x00rubbish"
    again = await broker.drain("--from-file", file)
    assert (again.code, again.out) == (0, f"Nothing is left to give back: 2 letters of {file} went before.\n")
    assert await broker.count() == 0


async def test_the_file_grows_and_what_is_new_in_it_is_given_back(broker: Broker, tmp_path: Path) -> None:
    file = tmp_path / "letters.ndjson"
    await broker.put(*bodies(2))
    assert (await broker.drain("--to-file", file)).code == 0
    assert (await broker.drain("--from-file", file)).code == 0
    assert (await broker.drain("--to-file", file)).code == 0
    assert len(lines(file)) == 4
    back = await broker.drain("--from-file", file)
    assert back.out == f"2 letters given back to {broker.topology.dead_exchange}, 2 before; 0 left.\n"
    assert [letter.body for letter in await broker.taken()] == bodies(2)


async def test_what_came_before_a_crash_is_not_written_twice(broker: Broker, tmp_path: Path) -> None:
    file = tmp_path / "letters.ndjson"
    await broker.put(*bodies(700))
    code = (
        "import os, sys\n"
        "from laneway_shared.broker import letters\n"
        "from laneway_center.cli import dead_drain, main\n"
        "append = dead_drain.LetterFile.append\n"
        "def die(self, batch, queue):\n"
        "    append(self, batch, queue)\n"
        '    self._file.write(b\'{"schemaVersion":1,"dra\')\n'
        "    self._file.flush()\n"
        "    os._exit(9)\n"
        "dead_drain.LetterFile.append = die\n"
        "main.main()\n"
    )
    died = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, "dead", "drain", "--to-file", str(file), env=environment(broker.names)
    )
    assert await asyncio.wait_for(died.wait(), 60) == 9
    written = file.read_bytes().count(b"\n")
    assert 0 < written <= 500
    await until(lambda: _is(broker, 700))
    drained = await broker.drain("--to-file", file)
    assert drained.out == f"{700 - written} letters drained into {file}, 700 in it now.\n"
    assert sorted(str(line["body"]) for line in lines(file)) == sorted({str(line["body"]) for line in lines(file)})
    assert len(lines(file)) == 700
    assert await broker.count() == 0


async def _is(broker: Broker, count: int) -> bool:
    return await broker.count() == count


@pytest.mark.parametrize("way", ["--to-file", "--from-file"])
async def test_ctrl_c_in_the_middle_and_again_doubles_none(broker: Broker, tmp_path: Path, way: str) -> None:
    file = tmp_path / "letters.ndjson"
    total = 3000
    await asyncio.gather(*(broker.put(body) for body in bodies(total)))
    if way == "--from-file":
        assert (await broker.drain("--to-file", file)).code == 0
    codes = [await _interrupted(broker.names, way, file) for _ in range(3)]
    assert 130 in codes
    assert set(codes) <= {0, 130}
    ended = await broker.drain(way, file)
    assert ended.code == 0
    if way == "--from-file":
        got = [letter.body for letter in await broker.taken()]
        assert (len(got), len(set(got))) == (total, total)
    else:
        assert len(lines(file)) == len({str(line["body"]) for line in lines(file)}) == total
        assert await broker.count() == 0


async def _interrupted(names: dict[str, str], way: str, file: Path) -> int:
    """One run, with Ctrl-C as soon as it has done something."""
    watched = file if way == "--to-file" else file.with_name(file.name + ".given")
    before = watched.stat().st_mtime_ns if watched.exists() else 0
    process = await asyncio.create_subprocess_exec(
        script("laneway"), "dead", "drain", way, str(file), env=environment(names),
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    async with asyncio.timeout(60):
        while process.returncode is None:
            if watched.exists() and watched.stat().st_size and watched.stat().st_mtime_ns != before:
                os.kill(process.pid, signal.SIGINT)
                await process.wait()
            else:
                await asyncio.sleep(0.001)
    return process.returncode


async def test_while_a_center_consumes_the_queue_it_is_left_alone(broker: Broker, tmp_path: Path) -> None:
    async def take(_message: object) -> None:
        pass

    queue = await broker.channel.get_queue(broker.topology.dead_queue)
    tag = await queue.consume(take)
    ended = await broker.drain("--to-file", tmp_path / "letters.ndjson")
    assert ended.code == 1
    assert ended.reason.startswith("laneway: DEAD_QUEUE_IN_USE: ")
    assert (await broker.drain("--to-file", tmp_path / "letters.ndjson", "--force")).code == 0
    await queue.cancel(tag)


async def test_what_stands_in_the_way_is_one_line(broker: Broker, tmp_path: Path, infra: Stack) -> None:
    file = tmp_path / "letters.ndjson"

    async def refused(code: int, says: str, *arguments: str, **names: str) -> None:
        ended = await laneway("dead", "drain", *arguments, **broker.names | names)
        assert (ended.code, ended.out) == (code, ""), ended
        assert says in ended.reason

    nobody = f"amqp://127.0.0.1:{free_port()}/"
    await refused(2, "which way?")
    await refused(2, "which way?", "--to-file", str(file), "--from-file", __file__)
    await refused(2, "does not exist", "--from-file", str(file))
    await refused(3, "BROKER_AWAY", "--to-file", str(file), LANEWAY_AMQP_URL=nobody)
    await refused(1, "TOPOLOGY_MISMATCH: there is no queue", "--to-file", str(file), LANEWAY_TOPOLOGY_PREFIX="nobodys")
    await refused(1, "FILE", "--to-file", str(tmp_path / "nowhere" / "letters"))
    await refused(2, "line 1 is no letter", "--to-file", __file__)
    await broker.put(*bodies(1))
    assert (await broker.drain("--to-file", file)).code == 0
    await refused(1, "there is no exchange", "--from-file", str(file), LANEWAY_TOPOLOGY_PREFIX="nobodys")
    await refused(3, "BROKER_AWAY", "--from-file", str(file), LANEWAY_AMQP_URL=nobody)
    await broker.channel.queue_delete(broker.topology.dead_queue)
    await refused(1, "nothing takes the letters", "--from-file", str(file))
    assert not (tmp_path / "letters.ndjson.given").exists()
