"""What operators see as dead letters: the ends of commands that may be sent again, and messages of no command."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import RowMapping, Select, Text, func, select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from laneway_center.store.commands import events_of, show_commands
from laneway_center.store.database import transact
from laneway_center.store.enqueue import Key
from laneway_center.store.statements import SQL
from laneway_center.store.tables import dead_end

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
class Listed:
    """A dead end and its command as it stands (None: a message, or it is not kept any more)."""

    end: RowMapping
    command: RowMapping | None


@dataclass(frozen=True, kw_only=True)
class Shown(Listed):
    """A dead end with everything known about it."""

    events: Sequence[RowMapping]
    letters: Sequence[RowMapping]


async def list_dead_ends(engine: AsyncEngine, wanted: Filter) -> list[Listed]:
    """Dead ends that match, newest first.

    Raises:
        DatabaseAwayError: PostgreSQL can't be reached.
    """
    e = dead_end.c
    query = _where(select(*_COLUMNS), wanted)
    if wanted.before is not None:
        query = query.where(tuple_(e.at, e.id) < wanted.before)
    query = query.order_by(e.at.desc(), e.id.desc()).limit(wanted.limit)

    async def work() -> list[Listed]:
        async with engine.connect() as connection:
            ends = list((await connection.execute(query)).mappings())
            keys = {_key(end) for end in ends if end["command_pk"] is not None}
            commands = await show_commands(connection, sorted(keys))
            return [Listed(end=end, command=_of(end, commands)) for end in ends]

    return await transact(work)


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
    query = query.group_by(*keys).order_by(count.desc(), *keys).limit(GROUPS_MOST)

    async def work() -> list[RowMapping]:
        async with engine.connect() as connection:
            return list((await connection.execute(query)).mappings())

    return await transact(work)


async def show_dead_end(engine: AsyncEngine, tenant_id: int, end_id: int) -> Shown | None:
    """One dead end with its command, timeline and messages.

    Raises:
        DatabaseAwayError: PostgreSQL can't be reached.
    """

    async def work() -> Shown | None:
        async with engine.connect() as connection:
            found = await connection.execute(SQL["dead_ends"], {"tenant_id": tenant_id, "ids": [end_id]})
            end = found.mappings().first()
            return None if end is None else await _with_evidence(connection, end)

    return await transact(work)


async def _with_evidence(connection: AsyncConnection, end: RowMapping) -> Shown:
    if end["letter_id"] is not None:
        given = {"letter_id": end["letter_id"], "most_bytes": BODY_BYTES}
        letters = await connection.execute(SQL["letter_of_end"], given)
        return Shown(end=end, command=None, events=(), letters=letters.mappings().all())
    tenant_id, command_id = key = _key(end)
    asked = {"tenant_id": tenant_id, "command_id": command_id, "most": LETTERS_MOST, "most_bytes": BODY_BYTES}
    about = await connection.execute(SQL["letters_of_command"], asked)
    return Shown(
        end=end,
        command=_of(end, await show_commands(connection, [key])),
        events=await events_of(connection, tenant_id, command_id),
        letters=about.mappings().all(),
    )


_COLUMNS: tuple[Any, ...] = (*dead_end.c, dead_end.c.command_id.cast(Text).label("command_uuid"))


def _key(end: RowMapping) -> Key:
    return end["tenant_id"], end["command_uuid"]


def _of(end: RowMapping, commands: Mapping[Key, RowMapping]) -> RowMapping | None:
    """Its command; not one that took the id after the retention."""
    found = commands.get(_key(end))
    return found if found is not None and found["id"] == end["command_pk"] else None


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
