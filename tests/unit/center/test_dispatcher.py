"""Which driver services a dispatcher looks at, and when."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from typing import Any, cast

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from laneway_center.dispatch import dispatcher
from laneway_center.dispatch.dispatcher import Dispatcher
from laneway_center.settings import CenterSettings
from laneway_center.store.claims import Claims, LiveServices
from laneway_center.store.database import DatabaseAwayError
from laneway_center.wakeups import Wakeups
from laneway_shared.broker import Publisher
from laneway_shared.topology import Topology
from unit.driver.stand_ins import until

BATCH = 10
NEVER_S = 3600.0


class Road:
    """A publisher's connection."""

    connected = True
    blocked = False


class Looks:
    """Stands in for the tables: nothing can be sent, and it is noted where somebody looked for it."""

    def __init__(self) -> None:
        self.road = Road()
        self.wakeups = Wakeups("postgresql://unused@localhost/unused", listens=False)
        self.ready: frozenset[str] = frozenset()
        self.asked: list[str] = []
        self.found: dict[str, list[Claims | Exception]] = {}
        self.echo = False  # each look is followed by a wake-up for the same service

    async def live_services(self, _: AsyncEngine) -> LiveServices:
        return LiveServices(capacity=dict.fromkeys(("busy", "other"), 100), ready=self.ready, profiles=())

    async def claim(self, _: AsyncEngine, driver: str, **_terms: Any) -> Claims:
        self.asked.append(driver)
        await asyncio.sleep(0)
        if self.echo:
            self.wakeups.lanes_ready({driver})
        found = self.found.get(driver)
        claimed = found.pop(0) if found else Claims((), looked=0)
        if isinstance(claimed, Exception):
            raise claimed
        return claimed

    @contextlib.asynccontextmanager
    async def running(self, poll_s: float) -> AsyncIterator[None]:
        settings = CenterSettings(dispatch_poll_s=poll_s, claim_batch=BATCH)
        nothing = cast("Any", None)
        one = Dispatcher(nothing, cast("Publisher", self.road), Topology(prefix="t"), settings, self.wakeups)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(one.run())
            yield
            one.stop()


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    made = Looks()
    monkeypatch.setattr(dispatcher, "live_services", made.live_services)
    monkeypatch.setattr(dispatcher, "claim", made.claim)
    monkeypatch.setattr(dispatcher, "AWAY_PAUSE_S", 0.01)
    return made


@pytest.fixture
def waits(looks: Looks, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long the dispatcher would have waited, each time it did."""
    noted: list[float] = []
    wait = looks.wakeups.wait

    def noting(timeout_s: float) -> Coroutine[Any, Any, frozenset[str] | None]:
        noted.append(timeout_s)
        return wait(timeout_s)

    monkeypatch.setattr(looks.wakeups, "wait", noting)
    return noted


async def test_where_a_batch_was_full_it_is_looked_at_again_at_once(looks: Looks) -> None:
    looks.ready = frozenset({"busy"})
    looks.found["busy"] = [Claims((), looked=BATCH), Claims((), looked=BATCH)]
    async with looks.running(NEVER_S):
        await until(lambda: len(looks.asked) == 3)
    assert looks.asked == ["busy"] * 3


async def test_full_batches_at_one_service_do_not_hold_up_another(looks: Looks) -> None:
    looks.ready = frozenset({"busy"})
    looks.found["busy"] = [Claims((), looked=BATCH) for _ in range(100_000)]
    async with looks.running(NEVER_S):
        await until(lambda: "busy" in looks.asked)
        looks.wakeups.lanes_ready({"other"})
        await until(lambda: "other" in looks.asked)
        looks.found["busy"] = []


async def test_a_lane_that_moved_is_looked_for_at_its_new_service_at_once(looks: Looks) -> None:
    looks.ready = frozenset({"busy"})
    moved = Claims((), looked=1)
    moved.handed_to = frozenset({"other"})
    looks.found["busy"] = [moved]
    async with looks.running(NEVER_S):
        await until(lambda: "other" in looks.asked)


async def test_lanes_that_time_makes_ready_are_seen_while_others_wake_without_end(looks: Looks) -> None:
    async with looks.running(0.3):
        await asyncio.sleep(0.05)
        looks.echo, looks.ready = True, frozenset({"other"})
        looks.wakeups.lanes_ready({"busy"})
        await until(lambda: "other" in looks.asked)
        looks.echo = False


async def test_a_wake_up_does_not_put_off_the_look_at_all_others(looks: Looks, waits: list[float]) -> None:
    async with looks.running(NEVER_S):
        await until(lambda: len(waits) == 1)
        await asyncio.sleep(0.2)
        looks.wakeups.lanes_ready({"busy"})
        await until(lambda: len(waits) == 2)
        assert looks.asked == ["busy"]
    assert waits[1] < waits[0] - 0.1, "until the same moment"


async def test_what_came_while_the_database_was_away_is_not_forgotten(looks: Looks) -> None:
    async with looks.running(NEVER_S):
        await asyncio.sleep(0.05)
        looks.ready = frozenset({"busy", "other"})
        looks.found["busy"] = [DatabaseAwayError()]
        looks.wakeups.lanes_ready({"busy"})
        await until(lambda: looks.asked.count("busy") == 2 and "other" in looks.asked)


@pytest.mark.parametrize("trouble", [("connected", False), ("blocked", True)], ids=["away", "blocked"])
async def test_without_a_road_nothing_is_claimed_and_afterwards_everything(
    looks: Looks, trouble: tuple[str, bool], waits: list[float]
) -> None:
    looks.ready = frozenset({"busy", "other"})
    name, value = trouble
    setattr(looks.road, name, value)
    async with looks.running(0.1):
        looks.wakeups.lanes_ready({"busy"})
        await asyncio.sleep(0.15)
        assert looks.asked == []
        assert len(waits) < 10
        setattr(looks.road, name, not value)
        await until(lambda: set(looks.asked) == {"busy", "other"})
