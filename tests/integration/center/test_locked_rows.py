"""Locking what evidence is about, while others hold it."""

import asyncio

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from laneway_center.store.claims import ClaimTerms, claim_in
from laneway_center.store.locked_rows import LockedRows, Subject, TransitionRefusedError
from laneway_center.store.withdrawals import CANCELLED, withdraw
from support.lanes import GRACE, claims, lane_of
from support.stored import ids, rows, store, submission

BOUND_S = 20.0
BLOCKED = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
TAKE_LANE = text("UPDATE lane SET next_seq = next_seq + 100 WHERE lane_id = :lane")


async def free(engine: AsyncEngine, lane: int) -> bool:
    """Whether nobody holds its row."""
    return bool(await rows(engine, "SELECT 1 FROM lane WHERE lane_id = :lane FOR UPDATE SKIP LOCKED", lane=lane))


async def until_blocked(engine: AsyncEngine) -> None:
    async with asyncio.timeout(BOUND_S):
        while not await rows(engine, BLOCKED):  # noqa: ASYNC110 - it looks at another transaction
            await asyncio.sleep(0.02)


async def locked(connection: AsyncConnection, *subjects: Subject) -> LockedRows:
    made = LockedRows(connection, GRACE)
    await made.lock(subjects)
    return made


async def test_lanes_are_locked_one_after_the_other_and_seen_as_others_left_them(engine: AsyncEngine) -> None:
    driver, devices = await lane_of(engine, 3)
    every = ids(await store(engine, *(submission(device) for device in (*devices, devices[0]))))
    found = await rows(
        engine, "SELECT DISTINCT lane_id FROM point_command WHERE command_id = ANY(:c) ORDER BY lane_id", c=every
    )
    first, second, third = (row.lane_id for row in found)
    subjects = [Subject(tenant_id=1, command_id=one) for one in reversed(every)]
    subjects.append(Subject(command_id=every[0]))  # as a device says it, without a tenant
    subjects.append(subjects[0])

    async def waits() -> dict[int, int]:
        async with engine.begin() as connection:
            made = await locked(connection, *subjects)
            assert len(made.ids) == len(every)
            assert not await free(engine, third)
            for one in every:
                command = made.find(Subject(tenant_id=1, command_id=one))
                assert command is not None
                assert command.row["status"] in ("PENDING", "DISPATCHING")
            return {lane_id: lane["next_seq"] for lane_id, lane in made._lanes.items()}

    async with engine.connect() as one, engine.connect() as two:
        await one.execute(TAKE_LANE, {"lane": first})
        await two.execute(TAKE_LANE, {"lane": second})
        waiting = asyncio.create_task(waits())
        await until_blocked(engine)
        assert await free(engine, third), "it comes after those that are waited for"
        assert len(await claims(engine, driver)) == 1
        await one.commit()
        await asyncio.sleep(0.1)
        assert await free(engine, third)
        await two.commit()
        async with asyncio.timeout(BOUND_S):
            assert await waiting == {first: 102, second: 101, third: 1}


async def test_a_claim_that_is_waited_for_is_seen(engine: AsyncEngine) -> None:
    driver, [device] = await lane_of(engine)
    [one, _] = ids(await store(engine, submission(device), submission(device)))
    [row] = await rows(engine, "SELECT id, lane_id FROM point_command WHERE command_id = :c", c=one)

    async def waits() -> tuple[str, int | None]:
        async with engine.begin() as connection:
            made = await locked(connection, Subject(tenant_id=1, command_id=one))
            command = made.find(Subject(tenant_id=1, command_id=one))
            assert command is not None
            return command.row["status"], made._lanes[row.lane_id]["holder_id"]

    async with engine.connect() as claims_it:
        terms = ClaimTerms(by="t", window_ms=10_000, grace_ms=5_000, most=100)
        assert len(await claim_in(claims_it, driver, 1000, [], terms)) == 1
        waiting = asyncio.create_task(waits())
        await until_blocked(engine)
        await claims_it.commit()
        async with asyncio.timeout(BOUND_S):
            assert await waiting == ("DISPATCHING", row.id)


@pytest.mark.parametrize(
    "subjects",
    [(), (Subject(tenant_id=1, command_id="0190c3e2-7b1c-7000-8000-3f2a9d5c1e77"),), (Subject(device_sn="nobody"),)],
    ids=["none", "unknown", "unknown device"],
)
async def test_nothing_to_lock_is_nothing_written(engine: AsyncEngine, subjects: tuple[Subject, ...]) -> None:
    async with engine.begin() as connection:
        made = await locked(connection, *subjects)
        assert made.ids == []
        assert await made.write() == frozenset()


async def test_a_row_that_slips_its_lock_stops_everything(engine: AsyncEngine) -> None:
    _, [device] = await lane_of(engine)
    [one] = ids(await store(engine, submission(device)))

    async def judge_it() -> None:
        async with engine.begin() as connection:
            made = await locked(connection, Subject(tenant_id=1, command_id=one))
            command = made.find(Subject(tenant_id=1, command_id=one))
            assert command is not None
            withdraw(made, command, CANCELLED, {})
            await connection.execute(text("UPDATE point_command SET attempt = 1 WHERE command_id = :c"), {"c": one})
            await made.write()

    with pytest.raises(TransitionRefusedError):
        await judge_it()
    [row] = await rows(
        engine,
        "SELECT c.status, l.depth, (SELECT count(*) FROM point_command_event e WHERE e.command_pk = c.id) AS lines"
        " FROM point_command c JOIN lane l USING (lane_id) WHERE c.command_id = :c",
        c=one,
    )
    assert (row.status, row.depth, row.lines) == ("PENDING", 1, 1)
