"""Wake-ups between processes, and what a dispatcher does with them."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from laneway_center.app import Center
from laneway_center.dispatch import dispatcher
from laneway_center.settings import CenterSettings
from laneway_center.store.claims import Claims, claim
from laneway_center.wakeups import Wakeups
from laneway_shared.broker import declare
from laneway_shared.topology import Topology
from support.stored import beat, register, store, submission

BOUND_S = 20.0
HELLO = frozenset({"hello"})
COMMAND, OTHER = "0190c3e2-7b1c-7000-8000-3f2a9d5c1e77", "0190c3e2-7b1c-7000-8000-000000000001"


async def until(condition: Callable[[], object], *, meanwhile: Callable[[], object] = lambda: None) -> None:
    async with asyncio.timeout(BOUND_S):
        while not condition():
            meanwhile()
            await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def processes(database_url: str) -> AsyncIterator[tuple[Wakeups, Wakeups]]:
    """Two, as it were, that hear each other."""
    one = Wakeups(database_url, listens=True, serves=True)
    two = Wakeups(database_url, listens=True, serves=True)
    async with asyncio.timeout(BOUND_S), asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(each.run()) for each in (one, two)]
        for says, hears in ((one, two), (two, one)):
            while await hears.wait(0.05) != HELLO:
                says.lanes_ready(HELLO)
        yield one, two
        for task in running:
            task.cancel()


async def heard(wakeups: Wakeups) -> frozenset[str] | None:
    """The next thing that is not an echo of the beginning."""
    while (woken := await wakeups.wait(BOUND_S)) == HELLO:
        pass
    return woken


async def test_other_processes_hear_which_driver_services_can_send(database_url: str) -> None:
    async with processes(database_url) as (one, two):
        one.lanes_ready({"mqtt", "dms.v2"})
        assert await heard(two) == frozenset({"mqtt", "dms.v2"})
        one.lanes_ready()
        assert await heard(two) is None
        one.lanes_ready(f"driver-{n}" for n in range(2000))  # more than a NOTIFY can say
        assert await heard(two) is None


async def test_other_processes_hear_whether_a_command_may_have_ended(database_url: str) -> None:
    async with processes(database_url) as (one, two):
        with (
            two.followers.follow(COMMAND, ends_only=True) as end,
            two.followers.follow(COMMAND) as line,
            two.followers.follow(OTHER) as other,
        ):
            await until(lambda: one.followers.elsewhere)
            one.commands_moved([COMMAND], going_on=True)
            assert await line.wait(BOUND_S)
            assert not end.news.is_set()
            one.commands_moved([COMMAND])
            one.commands_moved([COMMAND, OTHER], going_on=True)  # said together, and in whatever order
            assert await end.wait(BOUND_S)
            assert await other.wait(BOUND_S)


async def test_a_dispatcher_looks_at_no_driver_service_but_those_it_is_woken_for(
    engine: AsyncEngine, database_url: str, amqp_url: str, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    async def noted(engine: AsyncEngine, driver: str, **terms: Any) -> Claims:
        asked.append(driver)
        return await claim(engine, driver, **terms)

    monkeypatch.setattr(dispatcher, "claim", noted)
    names = Topology(prefix=prefix)
    await declare(amqp_url, names.exchanges, names.queues(("busy", "other")))
    for driver, device in (("busy", 9101), ("other", 9102)):
        await register(engine, [device], driver=driver)
        await beat(engine, driver)
    settings = CenterSettings(
        roles="dispatch", database_url=database_url, amqp_url=amqp_url, topology_prefix=prefix,
        dispatch_poll_s=3600.0, offline_after_s=600.0,
    )  # fmt: skip
    center = Center(settings)
    async with center.running():
        await store(engine, submission(9101))
        # nobody says whose lanes: whoever has something is looked at
        await until(lambda: "busy" in asked, meanwhile=center.wakeups.lanes_ready)
        for driver in ("busy", "other", "busy"):
            asked.clear()
            await until(lambda: driver in asked, meanwhile=lambda: center.wakeups.lanes_ready({driver}))  # noqa: B023
            assert set(asked) == {driver}
