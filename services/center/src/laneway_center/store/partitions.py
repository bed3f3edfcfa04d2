"""The days of the history: partitions made ahead of need, and dropped after the retention, without locking anybody out.

A partition is made as a table of its own and attached; it is dropped by detaching it concurrently first. Whatever has
to wait for a lock gives up after a moment and is tried again in the next round, where it goes on from where it was.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from laneway_center.store.database import sqlstate, transact
from laneway_center.store.statements import SQL

DAYS_AHEAD = 2
LOCK_TIMEOUT = "500ms"
_LOCK_TIMED_OUT, _NOT_IN_STATE, _GONE, _EXISTS = "55P03", "55000", "42P01", "42P07"
_NOT_NOW = (_LOCK_TIMED_OUT, _NOT_IN_STATE, _GONE, _EXISTS)  # among them: another center was quicker


@dataclass(frozen=True, kw_only=True)
class Dropped:
    """Partitions that were dropped, and whether some day has to wait for readers that still look at it."""

    names: tuple[str, ...]
    busy: bool


async def make_partitions(engine: AsyncEngine, retention: timedelta, *, days_ahead: int = DAYS_AHEAD) -> list[str]:
    """Make what is missing, from the oldest command that is still to be archived to some days ahead; their names.

    Raises:
        DatabaseAwayError: PostgreSQL can't be reached, or a lock wasn't to be had in time; nothing was made.
    """

    async def work() -> list[str]:
        async with engine.begin() as connection:
            if not (await connection.execute(SQL["lock_archiving"])).scalar_one():
                return []
            asked = {"retention_ms": _ms(retention), "ahead": days_ahead}
            missing = (await connection.execute(SQL["partitions_to_make"], asked)).all()
            if missing:
                await connection.execute(text(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'"))
            for row in missing:
                await connection.exec_driver_sql(row.make)
                await connection.exec_driver_sql(row.attach)
            return [row.name for row in missing]

    return await transact(work)


async def drop_partitions(engine: AsyncEngine, retention: timedelta) -> Dropped:
    """Drop the days that are older than the retention as a whole, commands before their timelines.

    Raises:
        DatabaseAwayError: PostgreSQL can't be reached.
    """

    async def work() -> Dropped:
        async with engine.connect() as plain:
            # detaching concurrently is two transactions, so it can't be part of one
            connection = await plain.execution_options(isolation_level="AUTOCOMMIT")
            old = (await connection.execute(SQL["partitions_to_drop"], {"retention_ms": _ms(retention)})).all()
            if not old:
                return Dropped(names=(), busy=False)
            if not (await connection.execute(SQL["lock_dropping"])).scalar_one():
                return Dropped(names=(), busy=True)
            try:
                await connection.execute(text(f"SET lock_timeout = '{LOCK_TIMEOUT}'"))
                names = [row.name for row in old if await _run(connection, [row.detach, row.remove])]
            finally:
                await connection.execute(text("RESET lock_timeout"))
                await connection.execute(SQL["unlock_dropping"])
            return Dropped(names=tuple(names), busy=len(names) < len(old))

    return await transact(work)


async def _run(connection: AsyncConnection, statements: Sequence[str | None]) -> bool:
    """Whether all of them could be done now."""
    for statement in statements:
        if statement is None:
            continue
        try:
            await connection.exec_driver_sql(statement)
        except DBAPIError as error:
            if sqlstate(error) in _NOT_NOW:
                return False
            raise
    return True


def _ms(span: timedelta) -> float:
    return span / timedelta(milliseconds=1)
