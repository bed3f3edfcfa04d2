"""Publishing and consuming on a real RabbitMQ: every outcome, bodies of any length, losses."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

from laneway_shared.broker import Consumer, Delivery, Outcome, Outgoing, Publisher, ack_all, declare
from laneway_shared.topology import Topology
from support.tcp_proxy import TcpProxy


@dataclass
class Stage:
    """A command queue, somebody who publishes to it, and somebody who reads it."""

    topology: Topology
    publisher: Publisher
    consumer: Consumer

    def message(self, body: bytes, key: str | None = None, **given: object) -> Outgoing:
        to = self.topology.command_key("v") if key is None else key
        return Outgoing(exchange=self.topology.command_exchange, routing_key=to, body=body, **given)  # type: ignore[arg-type]

    async def read(self, count: int) -> list[Delivery]:
        found: list[Delivery] = []
        async with asyncio.timeout(20):
            async for batch in self.consumer.batches(100):
                found += batch
                await ack_all(batch)
                if len(found) >= count:
                    break
        return found


@asynccontextmanager
async def staged(url: str, prefix: str, queue: str | None = None) -> AsyncIterator[Stage]:
    topology = Topology(prefix=prefix)
    await declare(url, topology.exchanges, topology.queues(("v",)))
    consumer = Consumer(url, "test reads", queue or topology.command_queue("v"), prefetch=500)
    async with Publisher(url, "test publishes").running() as publisher, asyncio.TaskGroup() as tasks:
        assert await publisher.wait_connected(10)
        reading = tasks.create_task(consumer.run())
        yield Stage(topology, publisher, consumer)
        reading.cancel()


async def test_bodies_of_any_length_arrive_as_they_were_sent(amqp_url: str, prefix: str) -> None:
    bodies = [b"", b"x", b"\xce\x00\xff" * 100_000, *(str(n).encode() for n in range(500))]
    async with staged(amqp_url, prefix) as stage:
        outcomes = await stage.publisher.publish([stage.message(body) for body in bodies])
        assert set(outcomes) == {Outcome.CONFIRMED}
        read = await stage.read(len(bodies))
    assert [delivery.body for delivery in read] == bodies
    assert len({delivery.message_id for delivery in read}) == len(bodies)
    assert {delivery.routing_key for delivery in read} == {stage.topology.command_key("v")}


async def test_each_message_has_its_own_outcome(amqp_url: str, prefix: str) -> None:
    async with staged(amqp_url, prefix) as stage:
        keys = [None, "nobody.reads.this", None, "nor.this"]
        outcomes = await stage.publisher.publish([stage.message(b"x", key) for key in keys])
        assert outcomes == [Outcome.CONFIRMED, Outcome.UNROUTABLE] * 2
        await stage.read(2)


async def test_what_dies_says_why(amqp_url: str, prefix: str) -> None:
    topology = Topology(prefix=prefix)
    async with staged(amqp_url, prefix, topology.dead_queue) as stage:
        headers = {"x-laneway-reason": "because", "n": 7}
        [outcome] = await stage.publisher.publish([stage.message(b"old", ttl_ms=1, headers=headers)])
        assert outcome is Outcome.CONFIRMED
        [letter] = await stage.read(1)
    assert letter.body == b"old"
    assert letter.headers["x-laneway-reason"] == "because"
    assert letter.headers["n"] == 7
    [death] = letter.headers["x-death"]
    assert (death["reason"], death["count"], death["queue"]) == ("expired", 1, topology.command_queue("v"))


async def test_what_was_published_when_the_connection_went_is_unknown_or_confirmed(amqp_url: str, prefix: str) -> None:
    at = urlsplit(amqp_url)
    proxy = TcpProxy(at.hostname or "", at.port or 0)
    async with proxy.running():
        road = at._replace(netloc=f"{at.username}:{at.password}@127.0.0.1:{proxy.port}").geturl()
        async with Publisher(road, "test by road").running() as publisher:
            topology = Topology(prefix=prefix)
            await declare(amqp_url, topology.exchanges, topology.queues(("v",)))
            assert await publisher.wait_connected(10)
            message = Outgoing(exchange=topology.command_exchange, routing_key=topology.command_key("v"), body=b"x")
            publishing = asyncio.ensure_future(publisher.publish([message] * 2000, timeout_s=10))
            await asyncio.sleep(0.005)
            proxy.cut()
            assert set(await publishing) <= {Outcome.CONFIRMED, Outcome.UNKNOWN}
            proxy.mend()
            assert await publisher.wait_connected(10)


async def test_an_exchange_that_is_not_there_costs_no_other_publish_for_long(amqp_url: str, prefix: str) -> None:
    async with staged(amqp_url, prefix) as stage:
        nowhere = Outgoing(exchange=f"{prefix}.none", routing_key="a", body=b"x")
        assert await stage.publisher.publish([nowhere]) == [Outcome.UNKNOWN]
        assert await stage.publisher.wait_connected(10)
        assert await stage.publisher.publish([stage.message(b"y")]) == [Outcome.CONFIRMED]
        await stage.read(1)


async def test_what_was_not_acked_when_the_connection_went_comes_again(amqp_url: str, prefix: str) -> None:
    at = urlsplit(amqp_url)
    proxy = TcpProxy(at.hostname or "", at.port or 0)
    async with proxy.running(), staged(amqp_url, f"{prefix}2") as stage:
        road = at._replace(netloc=f"{at.username}:{at.password}@127.0.0.1:{proxy.port}").geturl()
        topology = Topology(prefix=f"{prefix}3")
        await declare(amqp_url, topology.exchanges, topology.queues(("v",)))
        consumer = Consumer(road, "test by road", topology.command_queue("v"), prefetch=10)
        message = Outgoing(exchange=topology.command_exchange, routing_key=topology.command_key("v"), body=b"x")
        await stage.publisher.publish([message])
        async with asyncio.TaskGroup() as tasks, asyncio.timeout(30):
            reading = tasks.create_task(consumer.run())
            batches = consumer.batches(10)
            [first] = await anext(batches)
            assert not first.redelivered
            proxy.cut()
            proxy.mend()
            [again] = await anext(batches)
            assert (first.lost, again.lost, again.redelivered) == (True, False, True)
            assert not await first.ack()
            assert await again.ack()
            reading.cancel()
