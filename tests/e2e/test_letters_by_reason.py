"""Dead letters of what a driver rejects and of what comes back too often, as RabbitMQ makes them; replays."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import aio_pika
import pytest
from aio_pika.abc import AbstractIncomingMessage

from laneway_local.stack import AMQP_URL
from laneway_shared.broker import Outgoing, Publisher, declare
from laneway_shared.messages import Heartbeat, encode
from laneway_shared.topology import Topology
from support import command_line
from support.laneway import SWITCH, UNLOCK, Laneway, until

SPARE, REJECTED, RETURNED, DEAD_AT_ONCE = "spare", range(7000, 7010), range(7010, 7020), 7030
WHO = ("--operator", "duty", "--reason", "the driver is mended")


@asynccontextmanager
async def bad_driver(laneway: Laneway) -> AsyncIterator[None]:
    """A driver service that rejects the messages of some devices, and gives those of the others back for ever."""
    topology = Topology(prefix=laneway.prefix)
    url = laneway.stack.urls[AMQP_URL]
    await declare(url, topology.exchanges, [topology.command_queue_of(SPARE)])

    async def take(message: AbstractIncomingMessage) -> None:
        device = json.loads(message.body)["payload"]["deviceId"]
        await message.reject(requeue=device in RETURNED)

    async def live(publisher: Publisher) -> None:
        said = Heartbeat(kind="driver", service=SPARE, instance="bad", version="t", capacity=100)
        while True:
            key = topology.state_key(SPARE)
            await publisher.publish(
                [Outgoing(exchange=topology.state_exchange, routing_key=key, body=encode(said))], timeout_s=5
            )
            await asyncio.sleep(2)

    publisher = Publisher(url, "a bad driver")
    async with publisher.running(), await aio_pika.connect(url) as connection:
        assert await publisher.wait_connected(10)
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=50)
        queue = await channel.get_queue(topology.command_queue(SPARE))
        await queue.consume(take)
        beats = asyncio.ensure_future(live(publisher))
        try:
            yield
        finally:
            beats.cancel()
            with suppress(asyncio.CancelledError):
                await beats
            await queue.delete(if_unused=False, if_empty=False)


@pytest.fixture
def names(laneway: Laneway) -> dict[str, str]:
    """What a shell would have set."""
    return {"LANEWAY_URL": laneway.stack.service_url("center")}


async def said(names: dict[str, str], *arguments: str) -> Any:
    """The JSON document of a command that must succeed."""
    ended = await command_line.laneway(*arguments, "--output", "json", **names)
    assert (ended.code, ended.errors) == (0, ""), ended
    return json.loads(ended.out)


@pytest.mark.timeout(300)
async def test_what_a_driver_rejects_or_gives_back_for_ever_is_dead_and_runs_once_when_replayed(
    laneway: Laneway, names: dict[str, str]
) -> None:
    devices = [*REJECTED, *RETURNED]
    await laneway.register(devices, SPARE)
    async with bad_driver(laneway):
        await laneway.until_online(SPARE)
        bodies = [{"deviceId": n, "pointId": UNLOCK, "type": "WRITE", "value": "1", "expireIn": 60} for n in devices]
        made = await laneway.submit_batches(bodies)
        ends = [await laneway.ended(each, 90) for each in made]
    assert Counter((end["status"], end["errorCode"]) for end in ends) == {
        ("DEAD", "UNREADABLE"): len(REJECTED),
        ("DEAD", "DELIVERY_LIMIT"): len(RETURNED),
    }
    groups = (await said(names, "dead", "list", "--group", "--driver", SPARE))["groups"]
    assert {each["reason"]: each["count"] for each in groups} == {"rejected": 10, "delivery_limit": 10}
    for reason in ("rejected", "delivery_limit"):
        [some] = (await said(names, "dead", "list", "--driver", SPARE, "--why-dead", reason, "--limit", "1"))[
            "deadLetters"
        ]
        shown = await said(names, "dead", "show", str(some["id"]))
        assert {death["reason"] for letter in shown["letters"] for death in letter["xDeath"]} == {reason}

    # the devices are given to a driver that works, and all of it is sent again
    await laneway.register(devices, "virtual")
    replayed = await said(names, "dead", "replay", "--driver", SPARE, "--expire-in", "60", *WHO)
    assert (replayed["done"], replayed["refused"]) == (20, 0)
    assert Counter([(await laneway.ended(each))["status"] for each in made]) == {"SUCCESS": 20}
    done = Counter(each["commandId"] for each in laneway.virtual_executions() if each["commandId"] in set(made))
    assert done == Counter(made), "each device acted once"
    again = await command_line.laneway("dead", "replay", "--driver", SPARE, *WHO, **names)
    assert (again.code, again.out) == (0, "Nothing to replay: no open dead letter matches (20 replayed before).\n")


async def test_a_replay_runs_though_the_driver_still_remembers_the_command(
    laneway: Laneway, names: dict[str, str]
) -> None:
    await laneway.register([DEAD_AT_ONCE], "virtual", address={"failFirst": 1})
    command_id = await laneway.accepted(DEAD_AT_ONCE, "1", SWITCH, expireIn=60, maxAttempts=1)
    assert (await laneway.ended(command_id))["status"] == "DEAD"

    async def listed() -> bool:
        return bool((await said(names, "dead", "list", "--command", command_id))["deadLetters"])

    await until(listed)
    assert (await said(names, "dead", "replay", "--command", command_id, *WHO))["done"] == 1
    ended = await laneway.ended(command_id)
    assert (ended["status"], ended["attempt"]) == ("SUCCESS", 2)
    assert [each["commandId"] for each in laneway.virtual_executions()].count(command_id) == 1
