import asyncio
import contextlib
from collections.abc import AsyncIterator

from laneway_driver.results import OrderedAcks, ResultSender
from laneway_shared import broker
from laneway_shared.lifecycle import ResultKind
from laneway_shared.messages import ResultMessage
from unit.driver.stand_ins import TOPOLOGY, FakeDelivery, FakePublisher, command, until


def result(number: int) -> ResultMessage:
    return ResultMessage(status=ResultKind.SUCCESS, command_id=f"0190c3e2-0000-7000-8000-{number:012}", attempt=1)


@contextlib.asynccontextmanager
async def sending(sender: ResultSender) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(sender.run())
        yield
        task.cancel()


async def test_what_waits_goes_together_and_one_goes_alone() -> None:
    publisher = FakePublisher()
    sender = ResultSender(publisher, TOPOLOGY, "virtual")
    async with sending(sender):
        for number in range(450):
            sender.send(result(number))
        assert await sender.flush(5) == 0
        assert len(publisher.published) == 3
        assert [r.command_id for r in publisher.results] == [result(n).command_id for n in range(450)]
        sender.send(result(1))
        assert await sender.flush(5) == 0
        assert publisher.published[-1].correlation_id == result(1).command_id
        assert publisher.published[-1].body.startswith(b"{")
        assert publisher.published[-1].routing_key == "dc3.r.point_command_result.virtual"


async def test_unconfirmed_results_are_sent_again_in_order_before_anything_is_acked() -> None:
    publisher = FakePublisher()
    sender = ResultSender(publisher, TOPOLOGY, "virtual")
    publisher.outcome = lambda _: broker.Outcome.NOT_SENT
    deliveries = [FakeDelivery(command()) for _ in range(3)]
    async with sending(sender):
        for number, delivery in enumerate(deliveries):
            sender.acks.took(delivery)
            sender.send(result(number), delivery)
        await until(lambda: publisher.published)
        assert await sender.flush(0.01) == 3
        assert not any(delivery.answered for delivery in deliveries)
        publisher.outcome = lambda _: broker.Outcome.CONFIRMED
        sender.send(result(3))
        assert await sender.flush(5) == 0
        assert [r.command_id for r in publisher.results[-4:]] == [result(n).command_id for n in range(4)]
        assert all(delivery.answered for delivery in deliveries)


async def test_an_announcement_nobody_waits_for_is_not_sent() -> None:
    publisher = FakePublisher()
    sender = ResultSender(publisher, TOPOLOGY, "virtual")
    async with asyncio.TaskGroup() as tasks:
        announcing = tasks.create_task(sender.announce(result(1)))
        await asyncio.sleep(0)
        announcing.cancel()
    async with sending(sender):
        assert await sender.flush(5) == 0
    assert publisher.published == []


class CountedDelivery(FakeDelivery):
    """Counts the frames its acks take."""

    def __init__(self, frames: list[tuple["CountedDelivery", bool]]) -> None:
        super().__init__(command())
        self.frames = frames

    async def ack(self, *, multiple: bool = False) -> bool:
        self.frames.append((self, multiple))
        return await super().ack(multiple=multiple)


async def test_the_oldest_in_a_row_are_acked_with_one_frame_the_others_alone() -> None:
    frames: list[tuple[CountedDelivery, bool]] = []
    acks = OrderedAcks()
    first, second, third, fourth = deliveries = [CountedDelivery(frames) for _ in range(4)]
    for delivery in deliveries:
        acks.took(delivery)
    await acks.ack([fourth, second])
    assert frames == [(fourth, False), (second, False)]
    frames.clear()
    await acks.ack([third, first])
    assert frames == [(third, True)]  # covers first


async def test_acks_never_cross_a_lost_connection() -> None:
    frames: list[tuple[CountedDelivery, bool]] = []
    acks = OrderedAcks()
    old = [CountedDelivery(frames) for _ in range(2)]
    new = [CountedDelivery(frames) for _ in range(2)]
    for delivery in old:
        acks.took(delivery)
        delivery.lost = True
    for delivery in new:
        acks.took(delivery)
    await acks.ack([old[0], new[0]])
    assert frames == [(new[0], True)]
    assert not new[1].answered
