"""Reading commands, timelines and lanes as they are at one moment, in chunks, without locking anybody out."""

from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from datetime import datetime, timedelta
from sys import intern
from typing import Any

from sqlalchemy import RowMapping, TextClause
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from laneway_center.store.database import DatabaseRefusedError, sqlstate, transact
from laneway_center.store.statements import SQL
from laneway_center.verify.facts import Act, Command, Event, Facts, Lane
from laneway_shared.errors import LanewayError

CHUNK = 5000  # rows
Progress = Callable[[str, int, int], None]
"""Called with what is being read, how much of it is there, and how much there will be."""

_NO_SCHEMA = ("42P01", "42703")  # undefined table, undefined column


async def load(engine: AsyncEngine, tenant_id: int | None, progress: Progress) -> Facts:
    """Facts without journals, of one tenant or of all, from one read-only transaction with one view of the data.

    Raises:
        DatabaseAwayError: PostgreSQL can't be reached.
        DatabaseRefusedError: wrong user or database, no right to read, or another schema than this release's.
    """

    async def work() -> Facts:
        async with engine.connect() as connection:
            await connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
            return await _Reading(connection, tenant_id, progress).run()

    try:
        return await transact(work)
    except LanewayError:
        raise
    except Exception as error:
        state = sqlstate(error) or getattr(error, "sqlstate", None)
        if state in _NO_SCHEMA:
            raise DatabaseRefusedError(
                "the database has not this release's tables; run laneway-center migrate"
            ) from error
        if state is None and not isinstance(error, DBAPIError):
            raise
        raise DatabaseRefusedError(f"PostgreSQL says: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    told = getattr(error, "orig", None) or error
    return str(told).strip().partition("\n")[0]


class _Reading:
    def __init__(self, connection: AsyncConnection, tenant_id: int | None, progress: Progress) -> None:
        self.connection, self.parameters, self.progress = connection, {"tenant_id": tenant_id}, progress

    async def run(self) -> Facts:
        scope = (await self.connection.execute(SQL["verify_scope"], self.parameters)).mappings().one()
        commands = {
            row["id"]: _command(row) async for row in self.rows(SQL["verify_commands"], "commands", scope["commands"])
        }
        events = tuple([_event(row) async for row in self.rows(SQL["verify_events"], "events", scope["events"])])
        lanes = [Lane(**row) async for row in self.rows(SQL["verify_lanes"], "lanes", scope["lanes"])]
        acts: dict[tuple[int, str], list[Act]] = defaultdict(list)
        for row in (await self.connection.execute(SQL["verify_acts"], self.parameters)).mappings():
            acts[row["tenant_id"], row["lane_key"]].append(Act(action=row["action"], token=row["token"]))
        devices = await self.connection.execute(SQL["verify_devices"], self.parameters)
        return Facts(
            at=scope["at"],
            since=scope["history_since"],
            commands=commands,
            events=events,
            lanes={lane.lane_id: lane for lane in lanes},
            acts=acts,
            device_sns=frozenset(devices.scalars()),
        )

    async def rows(self, statement: TextClause, what: str, total: int) -> AsyncIterator[RowMapping]:
        done = 0
        self.progress(what, done, total)
        async with self.connection.stream(statement, self.parameters) as result:
            async for chunk in result.mappings().partitions(CHUNK):
                for row in chunk:
                    yield row
                done += len(chunk)
                self.progress(what, done, total)


def _command(row: RowMapping) -> Command:
    return Command(
        pk=row["id"],
        command_id=row["command_id"],
        tenant_id=row["tenant_id"],
        lane_id=row["lane_id"],
        driver=intern(row["driver"]),
        device_sn=row["device_sn"],
        status=intern(row["status"]),
        gate=intern(row["gate"]),
        retry=intern(row["retry"]),
        unsafe=row["retry_safety"] == "unsafe",
        ack_expected=row["ack_expected"],
        attempt=row["attempt"],
        call_timeout=timedelta(milliseconds=row["call_timeout_ms"]),
        expire_at=row["expire_at"],
        quiet_at=row["quiet_at"],
        ack_due_at=row["ack_due_at"],
        review_hold=row["review_hold"],
        review_policy=intern(row["review_policy"]),
        device_id=row["device_id"],
        priority=row["priority"],
        intent_key=row["intent_key"],
        purpose=row["purpose"],
        error_code=row["error_code"],
    )


def _event(row: RowMapping) -> Event:
    before, after = row["from_status"], row["to_status"]
    return Event(
        id=row["id"],
        command_pk=row["command_pk"],
        at=row["at"],
        before=before and intern(before),
        after=after and intern(after),
        attempt=row["attempt"],
        kind=intern(row["kind"]),
        lane_token=_readable(int, row["lane_token"]),
        start_by=_readable(datetime.fromisoformat, row["start_by"]),
        newer=row["newer"],
        merge=row["merge"],
    )


def _readable(read: Callable[[str], Any], text: str | None) -> Any:
    """A value of a claim's detail; None for one that can't be read, which is then a finding."""
    if text is None:
        return None
    try:
        return read(text)
    except ValueError:
        return None
