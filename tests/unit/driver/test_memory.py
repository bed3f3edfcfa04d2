import asyncio

from laneway_driver.dedup import Attempt, AttemptMemory, Phase
from laneway_driver.locks import DeviceLocks, LaneTokens
from laneway_shared.lifecycle import ResultKind
from laneway_shared.messages import ResultMessage
from unit.driver.stand_ins import FakeDelivery, command


def attempt(number: int = 1) -> Attempt:
    message = command(attempt=number)
    return Attempt(message, FakeDelivery(message))


ANSWER = ResultMessage(status=ResultKind.SUCCESS)


def test_answers_are_forgotten_after_their_time_and_beyond_the_size() -> None:
    now = 0.0
    memory = AttemptMemory(size=2, ttl_s=300, timer=lambda: now)
    ids = [attempt(number).id for number in range(1, 4)]
    for one in ids:
        memory.keep(one, ANSWER)
    assert [memory.answer(one) for one in ids] == [None, ANSWER, ANSWER]
    now = 301.0
    assert memory.answer(ids[2]) is None


def test_attempts_in_hand_are_never_forgotten() -> None:
    memory = AttemptMemory(size=1, ttl_s=1, timer=lambda: 0.0)
    attempts = [attempt(number) for number in range(1, 5)]
    for one in attempts:
        memory.take(one)
    assert all(memory.in_hand(one.id) for one in attempts)


def test_a_lost_delivery_counts_as_never_seen_until_it_has_started() -> None:
    memory = AttemptMemory(size=1, ttl_s=1)
    waiting, started = attempt(1), attempt(2)
    started.phase = Phase.STARTED
    for one in (waiting, started):
        memory.take(one)
        one.delivery = FakeDelivery(one.command)
        one.delivery.lost = True
    assert not memory.in_hand(waiting.id)
    assert memory.in_hand(started.id)


def test_a_dropped_attempt_doesnt_take_its_successor_along() -> None:
    memory = AttemptMemory(size=1, ttl_s=1)
    old, new = attempt(1), attempt(1)
    memory.take(old)
    memory.take(new)
    memory.drop(old)
    assert memory.in_hand(new.id)


async def test_a_device_is_held_by_one_at_a_time_in_order_of_arrival_and_leaves_nothing() -> None:
    locks = DeviceLocks()
    order: list[int] = []

    async def use(number: int) -> None:
        async with locks.hold("A100"):
            order.append(number)
            await asyncio.sleep(0)
            order.append(number)

    async with asyncio.TaskGroup() as tasks:
        for number in range(3):
            tasks.create_task(use(number))
        cut_off = tasks.create_task(use(3))
        await asyncio.sleep(0)
        cut_off.cancel()
    assert order == [0, 0, 1, 1, 2, 2]
    assert len(locks) == 0


def test_lane_tokens_only_grow() -> None:
    tokens = LaneTokens(2)
    assert tokens.admit("a", 5)
    assert tokens.admit("a", 5)
    assert not tokens.admit("a", 4)
    assert tokens.admit("b", 1)
    assert tokens.admit("c", 1)  # pushes a out
    assert tokens.admit("a", 4)
