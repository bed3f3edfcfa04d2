"""Drivers, devices and points: what commands are checked against."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import RowMapping, Table, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from laneway_center.store.database import to_json, transact
from laneway_center.store.statements import SQL
from laneway_center.store.tables import device, driver, point
from laneway_shared.errors import LanewayError


class LaneInUseError(LanewayError):
    """A device can't leave a lane in which it has open commands: it would be in two lanes at once."""

    code = "LANE_IN_USE"


ROWS_AT_ONCE = 500
"""Rows sent together; between two portions others get their turn."""


async def put_rows(connection: AsyncConnection, table: Table, rows: Sequence[dict[str, Any]]) -> None:
    """Insert rows or replace those with the same key."""
    keys = [column.name for column in table.primary_key.columns]
    statement = insert(table)
    changed = {name: statement.excluded[name] for name in rows[0] if name not in keys}
    statement = statement.on_conflict_do_update(
        index_elements=keys, set_={**changed, "update_time": func.clock_timestamp()}
    )
    for at in range(0, len(rows), ROWS_AT_ONCE):
        await connection.execute(statement, list(rows[at : at + ROWS_AT_ONCE]))


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
            if devices:
                await _check_lanes(connection, devices)
            for table, rows in ((driver, drivers), (device, devices), (point, points)):
                if rows:
                    await put_rows(connection, table, rows)
            if devices:
                await connection.execute(SQL["move_lanes"], {"rows": _lanes(devices)})

    await transact(work)


async def _check_lanes(connection: AsyncConnection, devices: Sequence[dict[str, Any]]) -> None:
    keys = [{name: device[name] for name in ("tenant_id", "device_id", "lane_key")} for device in devices]
    left = (await connection.execute(SQL["lanes_left_in_use"], {"rows": to_json(keys)})).first()
    if left is not None:
        raise LaneInUseError(f"device {left.device_id} has open commands in lane {left.lane_key}; let them end first")


def _lanes(devices: Sequence[dict[str, Any]]) -> str:
    """One row per lane: its driver is the last named one's; the dispatcher follows the head's from then on."""
    by_lane = {
        (device["tenant_id"], device["lane_key"]): {
            "tenant_id": device["tenant_id"],
            "lane_key": device["lane_key"],
            "driver": device["driver"],
        }
        for device in devices
    }
    return to_json(list(by_lane.values()))


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


async def read_devices(
    engine: AsyncEngine, tenant_id: int, *, after: int, limit: int, **exact: Any
) -> tuple[list[RowMapping], list[RowMapping]]:
    """Up to `limit` devices with ids above `after`, by id, and the points of those.

    Raises:
        DatabaseAwayError: PostgreSQL can't be reached.
    """
    wanted = select(device).where(device.c.tenant_id == tenant_id, device.c.device_id > after)
    for name, value in exact.items():
        wanted = wanted.where(device.c[name] == value)
    wanted = wanted.order_by(device.c.device_id).limit(limit)

    async def work() -> tuple[list[RowMapping], list[RowMapping]]:
        async with engine.connect() as connection:
            devices = list((await connection.execute(wanted)).mappings())
            ids = [row["device_id"] for row in devices]
            theirs = select(point).where(point.c.tenant_id == tenant_id, point.c.device_id.in_(ids))
            points = (await connection.execute(theirs.order_by(point.c.device_id, point.c.point_id))).mappings()
            return devices, list(points)

    return await transact(work)
