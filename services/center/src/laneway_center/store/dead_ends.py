"""What operators see as dead letters: the ends of commands that may be sent again, and messages of no command."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import RowMapping, Select, Text, func, select, tuple_
from sqlalchemy.ext.asyncio import AsyncEngine

from laneway_center.store.commands import show_commands
from laneway_center.store.database import transact
from laneway_center.store.statements import SQL
from laneway_center.store.tables import dead_end, point_command

BODY_BYTES = 65_536  # shown of a body
LETTERS_MOST = 20  # shown of one command
GROUPS_MOST = 200


@dataclass(frozen=True, kw_only=True)
class Filter:
    """Which dead ends, newest first, after the cursor (time and id of the last one seen)."""

    tenant_id: int
    states: Sequence[str] = ("open",)
    kind: str | None = None  # command or message
    ended_as: Sequence[str] = ()
    reasons: Sequence[str] = ()
    driver: str | None = None
    device_id: int | None = None
    command_id: str | None = None
    error_code: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    before: tuple[datetime, int] | None = None
    limit: int = 50


@dataclass(frozen=True, kw_only=True)
class Shown:
    """A dead end with everything known about it."""

    end: RowMapping
    command: RowMapping | None
    events: Sequence[RowMapping]
    letters: Sequence[RowMapping]


async def list_dead_ends(engine: AsyncEngine, wanted: Filter) -> list[RowMapping]:
    """Dead ends that match, with their command as it stands, newest first.

    Raises:
        DatabaseAwayError: PostgreSQL can't be reached.
    """
    e, c = dead_end.c, point_command.c
    query = _where(select(*_COLUMNS).outerjoin_from(dead_end, point_command, c.id == e.command_pk), wanted)
    if wanted.before is not None:
        query = query.where(tuple_(e.at, e.id) < wanted.before)
    query = query.order_by(e.at.desc(), e.id.desc()).limit(wanted.limit)
    return await _read(engine, query)


async def group_dead_ends(engine: AsyncEngine, wanted: Filter) -> list[RowMapping]:
    """How many match, by reason, driver and error code, most frequent first; each row holds the `total` of all.

    Raises:
        DatabaseAwayError: PostgreSQL can't be reached.
    """
    e = dead_end.c
    keys = (e.reason, e.driver, e.error_code, e.command_pk.is_(None).label("is_message"))
    count = func.count().label("count")
    total = func.sum(func.count()).over().label("total")
    query = _where(select(*keys, count, func.min(e.at).label("first"), func.max(e.at).label("last"), total), wanted)
    return await _read(engine, query.group_by(*keys).order_by(count.desc(), *keys).limit(GROUPS_MOST))


async def show_dead_end(engine: AsyncEngine, tenant_id: int, end_id: int) -> Shown | None:
    """One dead end with its command, timeline and messages.

    Raises:
        DatabaseAwayError: PostgreSQL can't be reached.
    """
    e, c = dead_end.c, point_command.c
    joined = select(*_COLUMNS).outerjoin_from(dead_end, point_command, c.id == e.command_pk)
    query = joined.where(e.tenant_id == tenant_id, e.id == end_id)

    async def work() -> Shown | None:
        async with engine.connect() as connection:
            end = (await connection.execute(query)).mappings().first()
            if end is None:
                return None
            if end["letter_id"] is not None:
                given = {"letter_id": end["letter_id"], "most_bytes": BODY_BYTES}
                letters = (await connection.execute(SQL["letter_of_end"], given)).mappings().all()
                return Shown(end=end, command=None, events=(), letters=letters)
            key = {"tenant_id": tenant_id, "command_id": end["command_uuid"]}
            about = await connection.execute(
                SQL["letters_of_command"], key | {"most": LETTERS_MOST, "most_bytes": BODY_BYTES}
            )
            events = await connection.execute(SQL["show_events"], key)
            shown = await show_commands(connection, [(tenant_id, end["command_uuid"])])
            command = shown.get((tenant_id, end["command_uuid"]))
            return Shown(end=end, command=command, events=events.mappings().all(), letters=about.mappings().all())

    return await transact(work)


_COLUMNS: tuple[Any, ...] = (
    *dead_end.c,
    dead_end.c.command_id.cast(Text).label("command_uuid"),
    *(point_command.c[name] for name in ("type", "point_id", "retry_safety", "intent_key")),
    point_command.c.status.label("command_status"),
)


def _where(query: Select[Any], wanted: Filter) -> Select[Any]:
    e = dead_end.c
    query = query.where(e.tenant_id == wanted.tenant_id)
    exact = ((e.driver, wanted.driver), (e.device_id, wanted.device_id), (e.error_code, wanted.error_code))
    for column, value in (*exact, (e.command_id, wanted.command_id)):
        if value is not None:
            query = query.where(column == value)
    for column, values in ((e.state, wanted.states), (e.ended_as, wanted.ended_as), (e.reason, wanted.reasons)):
        if values:
            query = query.where(column.in_(values))
    if wanted.kind is not None:
        query = query.where(e.command_pk.is_(None) if wanted.kind == "message" else e.command_pk.is_not(None))
    if wanted.since is not None:
        query = query.where(e.at >= wanted.since)
    if wanted.until is not None:
        query = query.where(e.at < wanted.until)
    return query


async def _read(engine: AsyncEngine, query: Select[Any]) -> list[RowMapping]:
    async def work() -> list[RowMapping]:
        async with engine.connect() as connection:
            return list((await connection.execute(query)).mappings())

    return await transact(work)
