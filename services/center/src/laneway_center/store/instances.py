"""Which driver and ack-listener instances live, as their heartbeats say."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import RowMapping, select
from sqlalchemy.ext.asyncio import AsyncEngine

from laneway_center.store.database import to_json, transact
from laneway_center.store.statements import SQL
from laneway_center.store.tables import driver_instance
from laneway_shared.messages import Heartbeat

DEAF_AFTER = timedelta(seconds=3)
"""A pause in `listening` longer than this means that heartbeats couldn't be received."""


async def record_heartbeats(engine: AsyncEngine, heartbeats: Sequence[Heartbeat]) -> None:
    """Store what instances said, the last word of each.

    Raises:
        DatabaseAwayError: PostgreSQL can't be reached.
    """
    rows: list[dict[str, Any]] = [
        {
            "n": n,
            "service": beat.service,
            "instance": beat.instance,
            "kind": beat.kind,
            "version": beat.version,
            "state": beat.state,
            "capacity": min(max(beat.capacity, 0), 1_000_000),
            "in_flight": min(max(beat.in_flight, 0), 1_000_000),
            "clock_offset_ms": beat.clock_offset_ms,
            "profiles": beat.profiles,
        }
        for n, beat in enumerate(heartbeats)
    ]

    async def work() -> None:
        async with engine.begin() as connection:
            await connection.execute(SQL["heartbeat"], {"rows": to_json(rows)})

    await transact(work)


async def mark_listening(engine: AsyncEngine) -> None:
    """Say that this center can receive heartbeats right now.

    Raises:
        DatabaseAwayError: PostgreSQL can't be reached.
    """

    async def work() -> None:
        async with engine.begin() as connection:
            await connection.execute(SQL["listening"], {"deaf_ms": DEAF_AFTER / timedelta(milliseconds=1)})

    await transact(work)


async def sweep_silent(engine: AsyncEngine, silence: timedelta) -> list[tuple[str, str]]:
    """Mark instances offline that said nothing for `silence` while the center listened.

    Raises:
        DatabaseAwayError: PostgreSQL can't be reached.
    """

    async def work() -> list[tuple[str, str]]:
        async with engine.begin() as connection:
            swept = await connection.execute(
                SQL["sweep_instances"], {"silence_ms": silence / timedelta(milliseconds=1)}
            )
            return [(row.service, row.instance) for row in swept]

    return await transact(work)


async def forget_instances(engine: AsyncEngine) -> None:
    """Drop instances that ended more than a day ago.

    Raises:
        DatabaseAwayError: PostgreSQL can't be reached.
    """

    async def work() -> None:
        async with engine.begin() as connection:
            await connection.execute(SQL["forget_instances"])

    await transact(work)


async def instances_of(engine: AsyncEngine, service: str | None = None) -> list[RowMapping]:
    """All instances that sent a heartbeat in the last day (of one service).

    Raises:
        DatabaseAwayError: PostgreSQL can't be reached.
    """
    query = select(driver_instance).order_by(driver_instance.c.service, driver_instance.c.instance)
    if service is not None:
        query = query.where(driver_instance.c.service == service)

    async def work() -> list[RowMapping]:
        async with engine.connect() as connection:
            return list((await connection.execute(query)).mappings())

    return await transact(work)
