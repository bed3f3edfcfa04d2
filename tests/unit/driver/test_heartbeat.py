import asyncio

from laneway_driver.clock import CenterClock
from laneway_driver.heartbeat import VERSION, Pulse
from laneway_shared import broker
from laneway_shared.messages import decode_heartbeat
from unit.driver.stand_ins import NOW, TOPOLOGY, FakePublisher, until


def pulse(publisher: FakePublisher, clock: CenterClock) -> Pulse:
    return Pulse(
        publisher,
        TOPOLOGY,
        clock,
        service="virtual",
        instance="virtual-1",
        capacity=7,
        in_flight=lambda: 3,
        health=lambda: None,
    )


async def test_a_heartbeat_says_what_the_center_needs() -> None:
    publisher = FakePublisher()
    clock = CenterClock(monotonic=lambda: 1.0, wall=lambda: NOW.timestamp() - 90)
    clock.learn(NOW)
    assert await pulse(publisher, clock).send("stopping")
    [message] = publisher.published
    assert (message.exchange, message.routing_key) == ("dc3.e.driver_state", "dc3.r.driver_state.virtual")
    assert not message.persistent
    beat = decode_heartbeat(message.body)
    assert (beat.kind, beat.state, beat.service, beat.instance) == ("driver", "stopping", "virtual", "virtual-1")
    assert (beat.capacity, beat.in_flight, beat.version) == (7, 3, VERSION)
    assert (beat.clock_offset_ms, beat.sent_at) == (-90_000.0, NOW)


async def test_the_first_heartbeat_comes_at_once_when_consuming_begins_and_is_tried_again() -> None:
    publisher = FakePublisher()
    consuming = asyncio.Event()
    publisher.outcome = lambda _: broker.Outcome.CONFIRMED if len(publisher.published) > 1 else broker.Outcome.NOT_SENT
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(pulse(publisher, CenterClock()).run(1000.0, consuming))
        await asyncio.sleep(0.01)
        assert publisher.published == []
        consuming.set()
        await until(lambda: len(publisher.published) == 2)
        task.cancel()
