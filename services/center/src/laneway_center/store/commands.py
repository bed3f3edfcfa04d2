"""Reading commands and their timelines."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import RowMapping, Select, Table, select, union_all
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from laneway_center.store.database import single, to_json, transact
from laneway_center.store.enqueue import Key
from laneway_center.store.history import show_archived
from laneway_center.store.statements import SQL
from laneway_center.store.tables import lane, point_command, point_command_history


@dataclass(frozen=True, kw_only=True)
class Filter:
    """Which commands to list, newest first, after the cursor (a row id)."""

    tenant_id: int
    device_id: int | None = None
    point_id: int | None = None
    status: Sequence[str] = ()
    type: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    before_id: int | None = None
    limit: int = 50


async def show_commands(connection: AsyncConnection, keys: Sequence[Key]) -> dict[Key, RowMapping]:
    """Commands by tenant and id, hot or archived."""
    shown = await _show_hot(connection, keys)
    missing = [key for key in keys if key not in shown]
    if missing:
        shown |= await show_archived(connection, missing)
        missing = [key for key in missing if key not in shown]
        shown |= await _show_hot(connection, missing)  # brought back in between
    return shown


async def _show_hot(connection: AsyncConnection, keys: Sequence[Key]) -> dict[Key, RowMapping]:
    if not keys:
        return {}
    rows = [{"tenant_id": tenant, "command_id": command} for tenant, command in keys]
    found = await connection.execute(SQL["show_commands"], {"rows": to_json(rows)})
    return {(row["tenant_id"], str(row["command_id"])): row for row in found.mappings()}


async def get_command(engine: AsyncEngine, tenant_id: int, command_id: str) -> RowMapping | None:
    """One command.

    Raises:
        DatabaseAwayError: PostgreSQL can't be reached.
    """

    async def work() -> RowMapping | None:
        async with single(engine).connect() as connection:
            return (await show_commands(connection, [(tenant_id, command_id)])).get((tenant_id, command_id))

    return await transact(work)


async def list_commands(engine: AsyncEngine, wanted: Filter) -> list[RowMapping]:
    """Commands that match, hot or archived, newest first: by row id, which a command keeps wherever it goes.

    Raises:
        DatabaseAwayError: PostgreSQL can't be reached.
    """

    async def work() -> list[RowMapping]:
        async with engine.connect() as connection:
            return list((await connection.execute(_listing(wanted))).mappings())

    return await transact(work)


def _listing(wanted: Filter) -> Select[Any]:
    """One statement, so that a command that moves meanwhile is in it once."""
    tables = (point_command, point_command_history)
    either = union_all(*(select(_matching(table, wanted).subquery()) for table in tables)).subquery()
    page = select(either).order_by(either.c.id.desc()).limit(wanted.limit).subquery()
    query = select(page, lane.c.lane_key).join(lane, lane.c.lane_id == page.c.lane_id)
    return query.order_by(page.c.id.desc())


def _matching(table: Table, wanted: Filter) -> Select[Any]:
    c = table.c
    query = select(*(c[column.name] for column in point_command.columns)).where(c.tenant_id == wanted.tenant_id)
    exact = ((c.device_id, wanted.device_id), (c.point_id, wanted.point_id), (c.type, wanted.type))
    for column, value in exact:
        if value is not None:
            query = query.where(column == value)
    if wanted.status:
        query = query.where(c.status.in_(wanted.status))
    if wanted.since is not None:
        query = query.where(c.create_time >= wanted.since)
    if wanted.until is not None:
        query = query.where(c.create_time < wanted.until)
    if wanted.before_id is not None:
        query = query.where(c.id < wanted.before_id)
    return query.order_by(c.id.desc()).limit(wanted.limit)  # in each table, or all that ever was would be sorted


async def show_events(engine: AsyncEngine, tenant_id: int, command_id: str) -> list[RowMapping]:
    """The timeline of one command, hot or archived, oldest first (empty: no such command).

    Raises:
        DatabaseAwayError: PostgreSQL can't be reached.
    """

    async def work() -> list[RowMapping]:
        async with engine.connect() as connection:
            return await events_of(connection, tenant_id, command_id)

    return await transact(work)


async def events_of(connection: AsyncConnection, tenant_id: int, command_id: str) -> list[RowMapping]:
    """The same, on a connection."""
    asked = {"tenant_id": tenant_id, "command_id": command_id}
    for statement in (SQL["show_events"], SQL["show_archived_events"], SQL["show_events"]):
        found = list((await connection.execute(statement, asked)).mappings())
        if found:
            break
    return found


async def lines_after(engine: AsyncEngine, command_pk: int, after: int, *, most: int) -> list[RowMapping]:
    """New lines in the timeline of one hot command (by its row id), oldest first.

    Raises:
        DatabaseAwayError: PostgreSQL can't be reached.
    """
    given = {"command_pk": command_pk, "after": after, "most": most}

    async def work() -> list[RowMapping]:
        async with engine.connect() as connection:
            return list((await connection.execute(SQL["lines_after"], given)).mappings())

    return await transact(work)


async def newest_lines(engine: AsyncEngine, commands: Sequence[int]) -> dict[int, int]:
    """The newest line of the timeline of each of these commands, by row ids.

    Raises:
        DatabaseAwayError: PostgreSQL can't be reached.
    """

    async def work() -> dict[int, int]:
        async with engine.connect() as connection:
            found = await connection.execute(SQL["newest_lines"], {"commands": list(commands)})
            return {row.command_pk: row.line for row in found}

    return await transact(work)
