"""Drivers, devices and points: what commands are checked against."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import RowMapping, Table, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from laneway_center.store.database import transact
from laneway_center.store.tables import device, driver, point

ROWS_AT_ONCE = 500
"""Rows of one INSERT: PostgreSQL takes 32,767 parameters in a statement."""


async def put_rows(connection: AsyncConnection, table: Table, rows: Sequence[dict[str, Any]]) -> None:
    """Insert rows or replace those with the same key."""
    keys = [column.name for column in table.primary_key.columns]
    for at in range(0, len(rows), ROWS_AT_ONCE):
        statement = insert(table).values(list(rows[at : at + ROWS_AT_ONCE]))
        changed = {name: statement.excluded[name] for name in rows[0] if name not in keys}
        await connection.execute(
            statement.on_conflict_do_update(
                index_elements=keys, set_={**changed, "update_time": func.clock_timestamp()}
            )
        )


async def put_registry(
    engine: AsyncEngine,
    *,
    drivers: Sequence[dict[str, Any]] = (),
    devices: Sequence[dict[str, Any]] = (),
    points: Sequence[dict[str, Any]] = (),
) -> None:
    """Store a whole registry document in one transaction: all of it or nothing.

    Raises:
        DatabaseAwayError: PostgreSQL can't be reached.
        DBAPIError: a reference to a driver or device that doesn't exist, or a serial number used twice.
    """

    async def work() -> None:
        async with engine.begin() as connection:
            for table, rows in ((driver, drivers), (device, devices), (point, points)):
                if rows:
                    await put_rows(connection, table, rows)

    await transact(work)


async def read_registry(
    engine: AsyncEngine, table: Table, *, tenant_id: int | None = None, **exact: Any
) -> list[RowMapping]:
    """Rows of one registry table, by key.

    Raises:
        DatabaseAwayError: PostgreSQL can't be reached.
    """
    query = select(table).order_by(*table.primary_key.columns)
    if tenant_id is not None:
        query = query.where(table.c.tenant_id == tenant_id)
    for name, value in exact.items():
        query = query.where(table.c[name] == value)

    async def work() -> list[RowMapping]:
        async with engine.connect() as connection:
            return list((await connection.execute(query)).mappings())

    return await transact(work)
