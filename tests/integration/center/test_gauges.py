"""What the gauges count: open dead letters, and lanes that somebody keeps closed."""

from sqlalchemy.ext.asyncio import AsyncEngine

from laneway_center.store.actions import Operator
from laneway_center.store.gauges import read_gauges
from laneway_center.store.lanes import hold_lane, release_lane
from support.ended import expired, in_review
from support.lanes import lane_of, waited
from support.stored import ids, run, store, submission

KIM = Operator(name="kim", why="the door is being repaired")


async def lanes_of(engine: AsyncEngine, driver: str) -> tuple[int, float]:
    """Closed lanes with waiting commands, and the seconds that the longest open ready lane waits."""
    found = [row for row in (await read_gauges(engine)).lanes if row["driver"] == driver]
    return sum(row["closed"] for row in found), max((row["blocked_s"] or 0.0 for row in found), default=0.0)


async def test_a_lane_that_an_operator_holds_is_closed_and_not_blocked(engine: AsyncEngine) -> None:
    driver, [device] = await lane_of(engine)
    [one] = ids(await store(engine, submission(device)))
    await waited(engine, one, 100)
    await run(engine, "UPDATE lane SET ready_at = ready_at - interval '100 s' WHERE driver = :d", d=driver)
    closed, blocked_s = await lanes_of(engine, driver)
    assert closed == 0
    assert blocked_s >= 100
    await hold_lane(engine, 1, f"device:{device}", KIM)
    assert await lanes_of(engine, driver) == (1, 0.0)
    await release_lane(engine, 1, f"device:{device}", KIM)
    assert (await lanes_of(engine, driver))[0] == 0


async def test_a_lane_that_is_held_and_empty_keeps_nobody_waiting(engine: AsyncEngine) -> None:
    driver, [device] = await lane_of(engine)
    await expired(engine, device)
    await hold_lane(engine, 1, f"device:{device}", KIM)
    assert (await lanes_of(engine, driver))[0] == 0


async def test_a_lane_that_a_review_closes_counts_while_something_waits(engine: AsyncEngine) -> None:
    driver, [device] = await lane_of(engine, review_policy="hold")
    await in_review(engine, driver, device)
    assert (await lanes_of(engine, driver))[0] == 0
    await store(engine, submission(device))
    assert (await lanes_of(engine, driver))[0] == 1


async def test_dead_letters_count_until_somebody_handles_them(engine: AsyncEngine) -> None:
    _, [device] = await lane_of(engine)
    before = (await read_gauges(engine)).dead_ends
    [one] = await expired(engine, device)
    assert (await read_gauges(engine)).dead_ends == before + 1
    await run(
        engine,
        "UPDATE dead_end SET state = 'discarded', handled_at = now() WHERE command_id = CAST(:c AS uuid)",
        c=one,
    )
    assert (await read_gauges(engine)).dead_ends == before
