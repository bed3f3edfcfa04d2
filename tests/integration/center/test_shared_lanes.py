"""Lanes that several devices share, of one driver or of two, and devices that move between lanes."""

import asyncio
import random
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from laneway_center.intake import Accepted
from laneway_center.store.actions import Operator
from laneway_center.store.claims import hand_on
from laneway_center.store.evidence import JudgeTerms, apply
from laneway_center.store.lanes import read_lane, skip_head
from laneway_center.store.registry import LaneInUseError, put_registry
from laneway_shared.judgement import Evidence, Policy
from laneway_shared.lifecycle import ResultKind
from laneway_shared.problems import ProblemError
from support.lanes import AT_ONCE, GRACE, about, claims, lane_of, tell, waited
from support.stored import UNLOCK, beat, books_balance, ids, intake, register, rows, run, store, submission

K = ResultKind
LATER = JudgeTerms(grace=GRACE, policy=Policy(base=timedelta(seconds=20)), chance=lambda: 0.0)


async def two_drivers(engine: AsyncEngine, **device: Any) -> tuple[str, int, str, int, str]:
    """One lane of two devices, each at a driver of its own."""
    one, [first] = await lane_of(engine)
    two, [second] = await lane_of(engine)
    key = f"shared:{first}"
    await register(engine, [first], driver=one, lane_key=key, **device)
    await register(engine, [second], driver=two, lane_key=key, **device)
    return one, first, two, second, key


async def looked(engine: AsyncEngine, *drivers: str, ageing_s: float = 60) -> list[str]:
    """What dispatchers send, looking a few times at each driver."""
    sent: list[str] = []
    for _ in range(4):
        for driver in drivers:
            sent += [row["command_id"] for row in await claims(engine, driver, ageing_s=ageing_s)]
        await run(
            engine, "UPDATE lane SET ready_at = now() WHERE state = 'ready' AND ready_at < now() + interval '1 s'"
        )
    return sent


async def test_the_next_ones_are_shown_and_skipped_in_the_order_of_claims(engine: AsyncEngine) -> None:
    driver, devices = await lane_of(engine, 12, lane_key="crowd")
    every = ids(
        await store(engine, *(submission(device, point=UNLOCK if n % 2 else 1) for n, device in enumerate(devices)))
    )
    async with engine.begin() as connection:
        await connection.execute(text("ANALYZE"))
    facts = await read_lane(engine, 1, "crowd", ageing_s=60)
    assert [row["command_id"] for row in facts.waiting] == every[:10]
    skipped = await skip_head(engine, 1, "crowd", Operator(name="t", why="t"), grace=GRACE, ageing_s=60)
    assert skipped.command_id == every[0]
    [row] = await claims(engine, driver)
    assert row["command_id"] == every[1]


async def test_a_lane_of_two_drivers_follows_the_head_that_waiting_has_raised(engine: AsyncEngine) -> None:
    one, first, two, second, _ = await two_drivers(engine)
    [old] = ids(await store(engine, submission(second, priority=1)))
    await waited(engine, old, 100)
    [urgent] = ids(await store(engine, submission(first, priority=0)))
    assert await looked(engine, one, two) == [old]
    await tell(engine, old, K.SUCCESS)
    assert await looked(engine, one, two) == [urgent]
    await books_balance(engine)


async def test_a_lane_of_two_drivers_goes_on_while_one_of_them_is_in_back_off(engine: AsyncEngine) -> None:
    one, first, two, second, _ = await two_drivers(engine, retry="relaxed")
    [failing] = ids(await store(engine, submission(first, priority=0)))
    assert await looked(engine, one) == [failing]
    [other] = ids(await store(engine, submission(second)))
    await tell(engine, failing, K.NOT_SENT, terms=LATER)
    assert await looked(engine, one, two) == [other]
    await books_balance(engine)


async def test_a_lane_is_handed_on_from_a_driver_that_is_away(engine: AsyncEngine) -> None:
    one, first, two, second, key = await two_drivers(engine)
    [lost] = ids(await store(engine, submission(first)))
    [other] = ids(await store(engine, submission(second)))
    await beat(engine, one, state="stopping")
    await hand_on(engine, 60)
    assert await looked(engine, two) == [], "the first one's turn isn't over"
    await run(engine, "UPDATE point_command SET expire_at = now() WHERE command_id = :c", c=lost)
    await run(engine, "UPDATE lane SET ready_at = now() WHERE lane_key = :k", k=key)
    await hand_on(engine, 60)
    assert await looked(engine, two) == [other]
    await run(engine, "UPDATE lane SET ready_at = now() WHERE lane_key = :k", k=key)
    before = await rows(engine, "SELECT state, holder_id FROM lane WHERE lane_key = :k", k=key)
    await hand_on(engine, 60)
    assert await rows(engine, "SELECT state, holder_id FROM lane WHERE lane_key = :k", k=key) == before, "it is busy"


async def test_a_device_that_moves_while_somebody_stores_is_never_in_two_lanes(engine: AsyncEngine) -> None:
    driver, [device] = await lane_of(engine)
    old, new = f"device:{device}", f"moved:{device}"
    async with engine.connect() as holder:
        await holder.execute(text("SELECT 1 FROM lane WHERE lane_key = :k FOR UPDATE"), {"k": old})
        storing = asyncio.ensure_future(store(engine, submission(device)))
        await _waiting_for_locks(engine, 1)
        moving = asyncio.ensure_future(register(engine, [device], driver=driver, lane_key=new))
        await _waiting_for_locks(engine, 2)
        await holder.rollback()
        answers, moved = await asyncio.gather(storing, moving, return_exceptions=True)
    assert isinstance(answers, list)
    [one] = ids(answers)
    [two] = ids(await store(engine, submission(device)))
    lanes = await rows(
        engine,
        "SELECT DISTINCT l.lane_key FROM point_command c JOIN lane l USING (lane_id) WHERE c.device_id = :d",
        d=device,
    )
    assert [row.lane_key for row in lanes] == [old if isinstance(moved, LaneInUseError) else new]
    assert len(await claims(engine, driver)) == 1, f"{one} and {two} are of one device"


async def _waiting_for_locks(engine: AsyncEngine, least: int) -> None:
    async with asyncio.timeout(30):
        while True:
            found = await rows(engine, "SELECT count(*) AS n FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
                                       " AND datname = current_database()")  # fmt: skip
            if found[0].n >= least:
                return
            await asyncio.sleep(0.02)


async def test_a_result_says_that_its_driver_has_room_again(engine: AsyncEngine) -> None:
    driver, devices = await lane_of(engine, 2)
    await store(engine, *(submission(device) for device in devices))
    [row] = await claims(engine, driver, room=1)
    assert (await claims(engine, driver, room=1)) == []
    applied = await apply(engine, [about(row["command_id"], Evidence(kind=K.SUCCESS, attempt=1))], AT_ONCE)
    assert applied.ready is None, "the other lane waits for room"


async def test_the_same_command_at_once_into_a_full_lane_is_known_and_not_refused(engine: AsyncEngine) -> None:
    for _ in range(5):
        _, [device] = await lane_of(engine, depth_limit=1)
        door, same = intake(engine, "postgresql://unused@localhost/unused"), submission(device)
        answers = await asyncio.gather(*(door.store([same]) for _ in range(4)))
        assert all(isinstance(part[0], Accepted) for part in answers), answers
        assert sorted(part[0].created for part in answers if isinstance(part[0], Accepted)) == [False] * 3 + [True]


async def test_a_group_shows_its_commands_as_they_stand_and_is_bounded(engine: AsyncEngine) -> None:
    _, [device] = await lane_of(engine)
    every = [submission(device, str(n), intent_key="k", merge="latest") for n in range(60)]
    answers = await store(engine, *every)
    shown = [a.command["status"] for a in answers if isinstance(a, Accepted)]
    assert shown == ["SUPERSEDED"] * 49 + ["PENDING"]
    refused = [a for a in answers if isinstance(a, ProblemError)]
    assert [problem.code for problem in refused] == ["LANE_BUSY"] * 10
    await books_balance(engine)


async def test_lane_policies_and_writers_of_lanes_dont_wait_for_each_other_in_a_circle(engine: AsyncEngine) -> None:
    _, devices = await lane_of(engine, 8)
    blank = dict.fromkeys(("gate", "retry", "review_policy", "max_attempts", "ack_timeout_ms", "on_full"))
    keys = [f"device:{device}" for device in reversed(devices)]
    lanes = [{"tenant_id": 1, "lane_key": key, "depth_limit": 500} | blank for key in keys]
    before = await rows(engine, "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
    for _ in range(10):
        await asyncio.gather(
            put_registry(engine, lanes=lanes), store(engine, *(submission(device) for device in devices))
        )
    after = await rows(engine, "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
    assert after == before


@pytest.mark.parametrize("limit", [1, 3])
async def test_drop_oldest_holds_its_bound_in_a_group(engine: AsyncEngine, limit: int) -> None:
    _, [device] = await lane_of(engine, depth_limit=limit, on_full="drop_oldest")
    answers = await store(engine, *(submission(device, str(n)) for n in range(40)))
    waiting = [a for a in answers if isinstance(a, Accepted) and a.command["status"] == "PENDING"]
    assert len(waiting) == limit
    await books_balance(engine)


@pytest.mark.parametrize("seed", range(12))
async def test_a_group_is_admitted_as_its_commands_would_be_one_by_one(engine: AsyncEngine, seed: int) -> None:
    chance = random.Random(seed)
    _, [together, apart] = await lane_of(engine, 2, depth_limit=chance.randint(1, 6), on_full="drop_oldest")
    points = [chance.choice([1, UNLOCK]) for _ in range(24)]
    intents = [chance.choice([None, None, "a", "b"]) for _ in points]

    def given(device: int) -> list[Any]:
        merges = [None if intent is None else "latest" for intent in intents]
        rows = enumerate(zip(points, intents, merges, strict=True))
        return [submission(device, str(n), point=p, intent_key=i, merge=m) for n, (p, i, m) in rows]

    group = await store(engine, *given(together))
    single = [answer for one in given(apart) for answer in await store(engine, one)]
    outcomes = [[a.code if isinstance(a, ProblemError) else "" for a in answers] for answers in (group, single)]
    assert outcomes[0] == outcomes[1]
    sql = "SELECT request_value, status, error_code FROM point_command WHERE device_id = :d ORDER BY seq"
    left = [await rows(engine, sql, d=device) for device in (together, apart)]
    assert left[0] == left[1]
    await books_balance(engine)
