"""Final commands after the hot window: moved with their timelines, found again, brought back.

A command is in point_command or in point_command_history, never in both. It moves under its row lock, so: whoever
locks rows, finds none and then looks in the other table, in a later statement, sees where it went.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy import RowMapping
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from laneway_center.store.database import RowsMovedError, to_json, transact
from laneway_center.store.enqueue import Key
from laneway_center.store.locked_rows import LockedCommand, LockedRows, Subject, TransitionRefusedError
from laneway_center.store.statements import SQL
from laneway_shared.judgement import Snapshot
from laneway_shared.lifecycle import FINAL

BEGINNING = datetime(1, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, kw_only=True)
class ArchiveTerms:
    """How long commands stay: in the hot tables after their end, and at all; and how many move at once."""

    hot: timedelta
    retention: timedelta
    most: int


@dataclass(frozen=True, kw_only=True)
class Archived:
    """What one batch moved. `up_to` is when the last of them ended: the next batch may begin there."""

    moved: int
    up_to: datetime
    more: bool  # the batch was full


async def archive(engine: AsyncEngine, terms: ArchiveTerms, *, after: datetime = BEGINNING) -> Archived:
    """Move a batch of final commands that ended at or after `after` and before the hot window; one transaction.

    Raises:
        DatabaseAwayError: PostgreSQL can't be reached; nothing was moved.
        DBAPIError: the partition of a day is missing; nothing was moved.
    """
    nothing = Archived(moved=0, up_to=after, more=False)

    async def work() -> Archived:
        async with engine.begin() as connection:
            if not (await connection.execute(SQL["lock_archiving"])).scalar_one():
                return nothing
            looked = {"after": after, "hot_ms": _ms(terms.hot), "most": terms.most, "final": sorted(FINAL)}
            rows = (await connection.execute(SQL["lock_finished"], looked)).all()
            if not rows:
                return nothing
            ids = [row.id for row in rows]
            await connection.execute(SQL["archive_commands"], {"ids": ids, "retention_ms": _ms(terms.retention)})
            up_to = max(row.finished_at for row in rows)
            return Archived(moved=len(ids), up_to=up_to, more=len(ids) == terms.most)

    return await transact(work)


async def drop_letters(engine: AsyncEngine, retention: timedelta, *, most: int) -> int:
    """Drop up to `most` messages and `most` ends of commands that are older than the retention; the larger number.

    Raises:
        DatabaseAwayError: PostgreSQL can't be reached.
    """
    given = {"retention_ms": _ms(retention), "most": most}

    async def work() -> int:
        async with engine.begin() as connection:
            ends = await connection.execute(SQL["drop_dead_ends"], given)
            letters = await connection.execute(SQL["drop_letters"], given)
            return max(ends.rowcount, letters.rowcount)

    return await transact(work)


async def archived_bodies(connection: AsyncConnection, keys: Sequence[Key]) -> dict[Key, str]:
    """The body hashes (hex) of those of these commands that are archived."""
    if not keys:
        return {}
    found = await connection.execute(SQL["archived_bodies"], {"rows": _keys(keys)})
    return {(row.tenant_id, row.command_id): row.body_hash.hex() for row in found}


async def refuse_archived(connection: AsyncConnection, keys: Sequence[Key], known: dict[Key, str]) -> None:
    """Ask, after these were inserted, whether any has been archived; that order is safe against the archiver.

    Raises:
        RowsMovedError: some have. They are in `known` now; nothing of this transaction may stay.
    """
    archived = await archived_bodies(connection, keys)
    if archived:
        known.update(archived)
        raise RowsMovedError


async def show_archived(connection: AsyncConnection, keys: Sequence[Key]) -> dict[Key, RowMapping]:
    """Archived commands by tenant and id."""
    if not keys:
        return {}
    found = await connection.execute(SQL["show_archived_commands"], {"rows": _keys(keys)})
    return {(row["tenant_id"], str(row["command_id"])): row for row in found.mappings()}


async def bring_back(connection: AsyncConnection, subjects: Sequence[Subject]) -> bool:
    """Put archived commands and their timelines back where they were, in this transaction; True: there were some.

    Their lanes are locked first, in lane_id order, and stay locked. They are as they were: final. Whoever calls this
    makes something else of them, or rolls back; else they are archived again.
    """
    rows = _subjects(subjects)
    await connection.execute(SQL["lanes_of_archived"], {"rows": rows})
    locked = (await connection.execute(SQL["lock_archived"], {"rows": rows})).all()
    if locked:
        await connection.execute(SQL["bring_back"], {"ids": [row.id for row in locked]})
    return bool(locked)


class ArchivedRows(LockedRows):
    """Archived commands that evidence is about: it becomes a line of their timelines and changes nothing."""

    async def lock(self, subjects: Sequence[Subject]) -> None:
        """Lock them in id order, after all lanes and hot commands of the transaction."""
        found = await self._connection.execute(SQL["lock_archived"], {"rows": _subjects(subjects)})
        for row in found.mappings():
            self._add(row)

    async def write(self) -> frozenset[str] | None:
        """Write the lines. No lane has to do with it."""
        if self._events:
            ended = {pk: command.row["finished_at"] for pk, command in self._by_id.items()}
            lines = [event | {"finished_at": ended[event["command_pk"]]} for event in self._events]
            await self._connection.execute(SQL["write_archived_events"], {"rows": to_json(lines)})
        return frozenset()

    def _keep_books(self, command: LockedCommand, old: Snapshot, new: Snapshot) -> None:
        raise TransitionRefusedError(
            f"command {command.row['command_id']} is archived as {old.status}, not {new.status}"
        )


async def find_archived(connection: AsyncConnection, subject: Subject, hot: LockedRows) -> LockedCommand | None:
    """A command that is not among the hot ones locked for it, as it ended: for whoever only wants to look.

    Raises:
        RowsMovedError: it came back in between.
    """
    archived = ArchivedRows(connection, hot.grace)
    await archived.lock([subject])
    command = archived.find(subject)
    if command is None:
        await refuse_moved(connection, [subject], hot)
    return command


async def refuse_moved(connection: AsyncConnection, subjects: Sequence[Subject], rows: LockedRows) -> None:
    """Ask whether commands found in neither table are hot by now.

    Raises:
        RowsMovedError: some are: they were brought back after `rows` had been locked.
    """
    asked = {"rows": _subjects(subjects), "seen": rows.ids}
    if (await connection.execute(SQL["came_back"], asked)).scalar_one():
        raise RowsMovedError


def _keys(keys: Sequence[Key]) -> str:
    return to_json([{"tenant_id": tenant, "command_id": command} for tenant, command in sorted(keys)])


def _subjects(subjects: Sequence[Subject]) -> str:
    named = {(s.tenant_id, s.command_id) for s in subjects if s.command_id is not None}
    return to_json([{"tenant_id": tenant, "command_id": command} for tenant, command in sorted(named, key=str)])


def _ms(span: timedelta) -> float:
    return span / timedelta(milliseconds=1)
