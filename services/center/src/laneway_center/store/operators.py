"""What an operator does to commands: send again, decide.

Each act is a line in the command's timeline and a row among the operators' actions, in one transaction with the change.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from http import HTTPStatus
from typing import Any

from msgspec.structs import replace
from sqlalchemy import RowMapping
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from laneway_center.store.actions import Action, Operator, record_actions
from laneway_center.store.commands import show_commands
from laneway_center.store.database import transact
from laneway_center.store.history import bring_back
from laneway_center.store.locked_rows import Change, LockedCommand, LockedRows, Subject
from laneway_center.store.statements import SQL
from laneway_shared.judgement import Snapshot
from laneway_shared.lifecycle import OPERATOR_TRANSITIONS, Status, is_dead_end
from laneway_shared.problems import ProblemError


@dataclass(frozen=True, kw_only=True)
class Again:
    """How commands are sent again.

    `force`: also an unsafe one that expired, or one that a newer one has overtaken. `dry_run`: only say what would be.
    """

    expire_in: timedelta
    grace: timedelta
    force: bool = False
    dry_run: bool = False


@dataclass(frozen=True, kw_only=True)
class SentAgain:
    """A command that was (or would be) put back into its lane."""

    change: Change | None  # None: a dry run
    previous_seq: int
    seq: int | None  # its new place in the lane
    next_attempt: int
    expire_at: datetime
    warnings: tuple[str, ...]  # why it may still not be sent
    command: RowMapping  # as it stands after that


async def send_again(
    engine: AsyncEngine, subject: Subject, operator: Operator, terms: Again, *, reviewed: bool = False
) -> SentAgain:
    """Put a DEAD, EXPIRED or (safe) TIMEOUT command, or one in review, back into its lane: at the tail, new deadline.

    The next dispatch is a new attempt, so no driver's memory swallows it. `reviewed`: only one in review.

    Raises:
        ProblemError: its state, or what happened since, doesn't allow it; nothing was written.
        DatabaseAwayError: PostgreSQL can't be reached; nothing was written.
    """

    async def work() -> SentAgain:
        async with engine.connect() as connection, connection.begin() as transaction:
            rows, command = await _locked(connection, subject, terms.grace)
            if reviewed and command.now_is.status is not Status.MANUAL_REVIEW:
                raise await _not_in_review(connection, command)
            again = SendingAgain(connection, rows, operator, terms)
            await again.look([command])
            again.add(command)
            await again.write()
            result = (await again.results())[command.row["id"]]
            if terms.dry_run:
                await transaction.rollback()
            return result

    return await transact(work)


async def resolve(
    engine: AsyncEngine, subject: Subject, operator: Operator, status: Status, *, grace: timedelta
) -> tuple[Change, RowMapping]:
    """Decide a review: SUCCESS or FAILED. Returns the change, and the command after it.

    Raises:
        ProblemError: it is not in review any more; nothing was written.
        DatabaseAwayError: PostgreSQL can't be reached; nothing was written.
    """

    async def work() -> tuple[Change, RowMapping]:
        async with engine.begin() as connection:
            rows, command = await _locked(connection, subject, grace)
            old = command.now_is
            if old.status is not Status.MANUAL_REVIEW or status not in OPERATOR_TRANSITIONS[old.status]:
                raise await _not_in_review(connection, command)
            new = replace(old, status=status, due_at=None)
            _record(rows, command, new, "RESOLVED", f"decided by an operator: {status}", operator)
            await rows.write()
            act = Action(
                action="review.resolve",
                subject=command.row["command_id"],
                tenant_id=command.row["tenant_id"],
                before=_facts(old, command.row["seq"]),
                after=_facts(new, command.seq),
            )
            await record_actions(connection, operator, [act])
            return rows.changes[-1], await _shown(connection, command)

    return await transact(work)


class SendingAgain:
    """Commands of one transaction that go back into their lanes."""

    def __init__(self, connection: AsyncConnection, rows: LockedRows, operator: Operator, terms: Again) -> None:
        self._connection, self._rows, self._operator, self._terms = connection, rows, operator, terms
        self._scope: Mapping[int, RowMapping] = {}
        self._ends: Mapping[int, int] = {}  # open dead ends by command
        self._added: dict[int, LockedCommand] = {}

    async def look(self, commands: Sequence[LockedCommand]) -> None:
        """Read what decides about locked commands beside their own state."""
        keys = {"commands": [command.row["id"] for command in commands]}
        ends = await self._connection.execute(SQL["lock_open_ends"], keys)
        self._ends = {row["command_pk"]: row["id"] for row in ends.mappings()}
        scope = await self._connection.execute(SQL["replay_scope"], keys)
        self._scope = {row["id"]: row for row in scope.mappings()}

    def add(self, command: LockedCommand) -> None:
        """Send this one again.

        Raises:
            ProblemError: it can't be; the others are not touched by that.
        """
        self._check(command)
        self._added[command.row["id"]] = command
        if self._terms.dry_run:
            return
        old = command.now_is
        self._rows.to_the_tail(command)
        kind, after = ("REQUEUED", " after review") if old.status is Status.MANUAL_REVIEW else ("REPLAYED", "")
        note = f"sent again by an operator{after}, as attempt {old.attempt + 1}, at place {command.seq} of its lane"
        new = _fresh(old, self._rows.now + self._terms.expire_in)
        _record(self._rows, command, new, kind, note, self._operator, force=self._terms.force or None)

    def _check(self, command: LockedCommand) -> None:
        old, scope = command.now_is, self._scope[command.row["id"]]
        reviewed = old.status is Status.MANUAL_REVIEW
        if not reviewed and not is_dead_end(old.status, unsafe=old.unsafe):
            if old.status is Status.TIMEOUT:
                raise _conflict("NOT_REPLAYABLE", "it is unsafe and may have acted; submit a new command instead")
            raise _conflict("NOT_REPLAYABLE", f"it is {old.status}; that state is not left by a replay")
        if scope["device_lane"] not in (None, self._rows.lane_key(command)):
            raise _conflict("NOT_REPLAYABLE", "its device has moved to another lane; submit a new command instead")
        if self._terms.force:
            return
        if old.unsafe and old.status is Status.EXPIRED:
            raise _conflict("FORCE_NEEDED", "it is unsafe and its deadline has passed; repeat with force")
        if scope["newer_id"] is not None:
            newer = f"a newer command of its intent, {scope['newer_id']}, is {scope['newer_status']}"
            raise _conflict("INTENT_OVERTAKEN", f"{newer}; to send this one after it all the same, repeat with force")

    async def write(self) -> None:
        """Write all of it, and who did it."""
        if self._terms.dry_run or not self._added:
            return
        await self._rows.write()
        replayed = [self._ends[pk] for pk in self._added if pk in self._ends]
        await close_ends(self._connection, replayed, "replayed", self._operator)
        acts = [self._act(command) for command in self._added.values()]
        await record_actions(self._connection, self._operator, acts)

    def _act(self, command: LockedCommand) -> Action:
        reviewed = command.before.status is Status.MANUAL_REVIEW
        command_id = command.row["command_id"]
        end = self._ends.get(command.row["id"])
        return Action(
            action="review.requeue" if reviewed else "letter.replay",
            subject=command_id if reviewed or end is None else str(end),
            tenant_id=command.row["tenant_id"],
            before={"commandId": command_id, **_facts(command.before, command.row["seq"])},
            after={"commandId": command_id, **_facts(command.now_is, command.seq), "force": self._terms.force},
        )

    async def results(self) -> dict[int, SentAgain]:
        """What became of those added, by row id of the command."""
        keys = [(command.row["tenant_id"], command.row["command_id"]) for command in self._added.values()]
        shown = await show_commands(self._connection, keys) if keys else {}
        changes = {(change.tenant_id, change.command_id): change for change in self._rows.changes}
        dry = self._terms.dry_run
        return {
            pk: SentAgain(
                change=changes.get(key),
                previous_seq=command.row["seq"],
                seq=None if dry else command.seq,
                next_attempt=command.now_is.attempt + 1,
                expire_at=self._rows.now + self._terms.expire_in,
                warnings=_warnings(self._scope[pk]),
                command=shown[key],
            )
            for (pk, command), key in zip(self._added.items(), keys, strict=True)
        }


async def close_ends(connection: AsyncConnection, ends: Sequence[int], state: str, operator: Operator) -> None:
    """Mark locked, open dead ends as replayed or discarded."""
    if ends:
        given = {"ids": list(ends), "state": state, "operator": operator.name, "why": operator.why}
        await connection.execute(SQL["handle_dead_ends"], given)


async def lock_commands(connection: AsyncConnection, subjects: Sequence[Subject], grace: timedelta) -> LockedRows:
    """The commands an operator means, under their locks; archived ones are back in their lanes' table.

    If nothing comes of it, roll back, or leave them there: the archiver's next round moves them again.
    """
    if subjects:
        await bring_back(connection, subjects)  # first: it locks the lanes of all of them, in one order
    rows = LockedRows(connection, grace)
    await rows.lock(subjects)
    missing = [subject for subject in subjects if rows.find(subject) is None]
    if missing:
        await bring_back(connection, missing)
        rows = LockedRows(connection, grace)  # again in any case: somebody else may just have brought them back
        await rows.lock(subjects)
    return rows


async def _locked(connection: AsyncConnection, subject: Subject, grace: timedelta) -> tuple[LockedRows, LockedCommand]:
    rows = await lock_commands(connection, [subject], grace)
    command = rows.find(subject)
    if command is None:
        raise ProblemError(HTTPStatus.NOT_FOUND, "COMMAND_UNKNOWN", f"no command {subject.command_id} is known")
    return rows, command


async def _shown(connection: AsyncConnection, command: LockedCommand) -> RowMapping:
    key = (command.row["tenant_id"], command.row["command_id"])
    return (await show_commands(connection, [key]))[key]


async def _not_in_review(connection: AsyncConnection, command: LockedCommand) -> ProblemError:
    """Says who was first, if it ever was in review."""
    found = await connection.execute(SQL["review_decisions"], {"commands": [command.row["id"]]})
    detail = f"it is {command.now_is.status}, not in review"
    last = found.mappings().first()
    if last is not None:
        who = (last["detail"] or {}).get("by")
        by = f"{who} did that" if who else "late evidence did that"
        detail += f": it became {last['to_status']} at {last['at'].isoformat(timespec='seconds')}, and {by}"
    return _conflict("NOT_IN_REVIEW", detail)


def _fresh(old: Snapshot, expire_at: datetime) -> Snapshot:
    """Attempts go on counting, but none of those before counts against the new time. What may have run stays known."""
    return replace(
        old,
        status=Status.PENDING,
        attempts_spent=0,
        expire_at=expire_at,
        due_at=expire_at,
        absent=False,
        ack_due_at=None,
        error_code=None,
        error_message=None,
    )


def _record(
    rows: LockedRows,
    command: LockedCommand,
    new: Snapshot,
    kind: str,
    note: str,
    operator: Operator,
    *,
    force: bool | None = None,
) -> None:
    detail = {"by": operator.name, "why": operator.why, "force": force}
    rows.record(command, new, kind=kind, note=note, attempt=new.attempt, detail=detail, table=OPERATOR_TRANSITIONS)


def _facts(snapshot: Snapshot, seq: int) -> dict[str, Any]:
    return {
        "status": snapshot.status,
        "attempt": snapshot.attempt,
        "seq": seq,
        "expireAt": snapshot.expire_at,
        "errorCode": snapshot.error_code,
    }


def _warnings(scope: RowMapping) -> tuple[str, ...]:
    found = []
    if not scope["enabled"]:
        found.append("its device, point or driver is disabled or gone; it will not be sent before that is changed")
    elif not scope["driver_online"]:
        found.append(f"driver {scope['driver']} has no live instance; it waits for one until its deadline")
    return tuple(found)


def _conflict(code: str, detail: str) -> ProblemError:
    return ProblemError(HTTPStatus.CONFLICT, code, detail)
