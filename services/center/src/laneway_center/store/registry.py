"""Drivers, devices and points: what commands are checked against."""

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import RowMapping, Table, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from laneway_center.store.actions import Action, Operator, record_actions
from laneway_center.store.database import to_json, transact
from laneway_center.store.statements import SQL
from laneway_center.store.tables import device, driver, point
from laneway_shared.errors import LanewayError


class LaneInUseError(LanewayError):
    """A device can't leave a lane in which it has open commands: it would be in two lanes at once."""

    code = "LANE_IN_USE"


class LaneUnnamedError(LanewayError):
    """A device's registration names no lane, or a lane's policy names one without devices."""

    code = "LANE_UNNAMED"


NAMED_MOST = 20  # entries named in an operator's action
ROWS_AT_ONCE = 500
"""Rows sent together; between two portions others get their turn."""


async def put_rows(connection: AsyncConnection, table: Table, rows: Sequence[dict[str, Any]]) -> None:
    """Insert rows or replace those with the same key."""
    keys = [column.name for column in table.primary_key.columns]
    statement = insert(table)
    changed = {name: statement.excluded[name] for name in rows[0] if name not in {*keys, "lane_key"}}
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
    lanes: Sequence[dict[str, Any]] = (),
    operator: Operator | None = None,
) -> None:
    """Store a whole registry document in one transaction: all of it or nothing. With `operator` it is written down.

    Raises:
        LaneInUseError: a device would leave a lane in which it has open commands.
        LaneUnnamedError: it can't be said in which lane a device is, or which device is in a lane.
        DatabaseAwayError: PostgreSQL can't be reached.
        DBAPIError: a reference to a driver or device that doesn't exist, or a serial number used twice.
    """
    # a new device starts in a lane of its own; _place puts it where it belongs
    placed = [{**row, "lane_key": f"device:{row['device_id']}"} for row in devices]

    async def work() -> None:
        async with engine.begin() as connection:
            for table, rows in ((driver, drivers), (device, placed), (point, points)):
                if rows:
                    await put_rows(connection, table, rows)
            if drivers or devices:
                await _place(connection, drivers, devices)
            if lanes:
                await _put_lane_policies(connection, lanes)
            if operator is not None:
                await record_actions(connection, operator, [_put_act(drivers, devices, points, lanes)])

    await transact(work)


def _put_act(*given: Sequence[dict[str, Any]]) -> Action:
    """Which entries were put; of many the first ones."""
    keys = ("name", "device_id", "point_id", "lane_key")
    kinds = ("drivers", "devices", "points", "lanes")
    named: dict[str, dict[str, Any]] = {
        kind: {"count": len(rows), "first": [str(row[key]) for row in rows[:NAMED_MOST]]}
        for kind, key, rows in zip(kinds, keys, given, strict=True)
        if rows
    }
    [subject, *more] = [f"{kind}: {about['first'][0]}" for kind, about in named.items()] or ["nothing"]
    return Action(action="registry.put", subject=subject if not more else "registry", after=named)


async def _place(
    connection: AsyncConnection, drivers: Sequence[dict[str, Any]], devices: Sequence[dict[str, Any]]
) -> None:
    keys = [{name: row[name] for name in ("tenant_id", "device_id")} for row in devices]
    names = [row["name"] for row in drivers]
    found = await connection.execute(SQL["misplaced_devices"], {"rows": to_json(keys), "drivers": names})
    misplaced = list(found.mappings())
    if misplaced:  # asked again under the locks of the lanes that are left, which all who store in them hold
        lanes = await _lock_lanes(connection, [(row["tenant_id"], row["was"]) for row in misplaced])
        found = await connection.execute(SQL["misplaced_devices"], {"rows": to_json(keys), "drivers": names})
        misplaced = list(found.mappings())
        await connection.execute(SQL["note_left_lanes"], {"lanes": lanes})
    for row in misplaced:
        if row["lane_key"] is None:
            missing = {"group": "laneGroup", "topic": "a topic in its address"}.get(row["lane_by"], "laneKey")
            raise LaneUnnamedError(f"device {row['device_id']} is in lanes by {row['lane_by']} but has no {missing}")
        if row["in_use"]:
            raise LaneInUseError(
                f"device {row['device_id']} has open commands in lane {row['was']}; let them end first"
            )
    if misplaced:
        moved = [{name: row[name] for name in ("tenant_id", "device_id", "lane_key")} for row in misplaced]
        await connection.execute(SQL["place_devices"], {"rows": to_json(moved)})
        keys += moved
    if keys:
        await connection.execute(SQL["make_lanes"], {"rows": to_json(keys)})
        await connection.execute(SQL["move_lanes"], {"rows": to_json(keys)})


async def _lock_lanes(connection: AsyncConnection, keys: Iterable[tuple[int, str]]) -> list[int]:
    """Lock those that exist; who stores in them at this moment is waited for, or looks again. Returns their ids."""
    named = to_json([{"tenant_id": tenant, "lane_key": key} for tenant, key in set(keys)])
    found = sorted((await connection.execute(SQL["lanes_by_key"], {"rows": named})).scalars())
    await connection.execute(SQL["lock_lanes"], {"lanes": found})
    return found


async def _put_lane_policies(connection: AsyncConnection, lanes: Sequence[dict[str, Any]]) -> None:
    await _lock_lanes(connection, [(lane["tenant_id"], lane["lane_key"]) for lane in lanes])
    put = await connection.execute(SQL["put_lane_policies"], {"rows": to_json(lanes)})
    known = {(row.tenant_id, row.lane_key) for row in put}
    unknown = [lane["lane_key"] for lane in lanes if (lane["tenant_id"], lane["lane_key"]) not in known]
    if unknown:
        raise LaneUnnamedError(f"no device is in lane {unknown[0]}")


async def lane_policies(engine: AsyncEngine, tenant_id: int) -> list[RowMapping]:
    """The policies of a tenant's lanes that have one.

    Raises:
        DatabaseAwayError: PostgreSQL can't be reached.
    """

    async def work() -> list[RowMapping]:
        async with engine.connect() as connection:
            return list((await connection.execute(SQL["lane_policies"], {"tenant_id": tenant_id})).mappings())

    return await transact(work)


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
