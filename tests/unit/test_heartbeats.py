import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from laneway_shared import heartbeats
from laneway_shared.broker import Outcome, Outgoing
from laneway_shared.heartbeats import Pulse
from laneway_shared.messages import Heartbeat, decode_heartbeat
from laneway_shared.topology import Topology

NEVER_S = 1000.0


class Broker:
    """Publishing with these outcomes; afterwards all is confirmed."""

    def __init__(self, *outcomes: Outcome) -> None:
        self.published: list[Outgoing] = []
        self._outcomes = list(outcomes)

    async def publish(self, messages: Sequence[Outgoing], *, timeout_s: float | None = None) -> list[Outcome]:
        assert timeout_s is not None
        self.published += messages
        return [self._outcomes.pop(0) if self._outcomes else Outcome.CONFIRMED for _ in messages]

    async def has(self, count: int) -> None:
        async with asyncio.timeout(5):
            while len(self.published) < count:  # noqa: ASYNC110 - told by nobody
                await asyncio.sleep(0.001)

    @property
    def states(self) -> list[str]:
        return [decode_heartbeat(message.body).state for message in self.published]


def pulse_on(broker: Broker) -> Pulse:
    return Pulse(
        broker,
        Topology(),
        "virtual",
        lambda state: Heartbeat(kind="driver", service="virtual", instance="i", version="1", state=state),
    )


@asynccontextmanager
async def beating(pulse: Pulse, active: asyncio.Event) -> AsyncIterator[None]:
    task = asyncio.ensure_future(pulse.run(NEVER_S, active))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def test_the_first_comes_at_once_when_activity_begins() -> None:
    broker, active = Broker(), asyncio.Event()
    async with beating(pulse_on(broker), active):
        await asyncio.sleep(0.01)
        assert not broker.published
        active.set()
        await broker.has(1)
    [message] = broker.published
    assert (message.exchange, message.routing_key) == ("dc3.e.driver_state", "dc3.r.driver_state.virtual")
    assert not message.persistent


@pytest.mark.parametrize("miss", [Outcome.NOT_SENT, Outcome.UNROUTABLE, Outcome.UNKNOWN])
async def test_what_is_not_confirmed_does_not_cost_an_interval(miss: Outcome, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeats, "RETRY_FIRST_S", 0.001)
    broker, active = Broker(miss, miss, miss), asyncio.Event()
    active.set()
    async with beating(pulse_on(broker), active):
        await broker.has(4)
        await asyncio.sleep(0.01)
    assert broker.states == ["online"] * 4


async def test_an_end_is_told_to_those_who_knew_of_a_beginning() -> None:
    broker, active = Broker(Outcome.UNKNOWN), asyncio.Event()
    pulse = pulse_on(broker)
    await pulse.stop()
    assert not broker.published
    active.set()
    async with beating(pulse, active):
        await broker.has(1)
    await pulse.stop()
    assert broker.states == ["online", "stopping"]
