"""What an operator does to a command: replay, requeue, resolve. Each is a line in its timeline, with who and why."""

from datetime import datetime, timedelta
from http import HTTPStatus

from msgspec.structs import replace
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from laneway_center.store.actions import Operator
from laneway_center.store.database import transact
from laneway_center.store.history import bring_back
from laneway_center.store.locked_rows import Change, LockedCommand, LockedRows, Subject
from laneway_shared.judgement import Snapshot
from laneway_shared.lifecycle import OPERATOR_TRANSITIONS, Status
from laneway_shared.problems import ProblemError


async def send_again(
    engine: AsyncEngine, subject: Subject, operator: Operator, *, expire_in: timedelta, grace: timedelta, force: bool
) -> Change:
    """Put a DEAD, EXPIRED or (safe) TIMEOUT command, or one in review, back into its lane: at the tail, new deadline.

    The next dispatch is a new attempt, so no driver's memory swallows it. `force` is needed for an unsafe command
    that expired: its time has passed, and somebody may have acted otherwise since.

    Raises:
        ProblemError: its state doesn't allow it; nothing was written.
        DatabaseAwayError: PostgreSQL can't be reached; nothing was written.
    """

    async def work() -> Change:
        async with engine.begin() as connection:
            rows, command = await _locked(connection, grace, subject)
            old = command.now_is
            if Status.PENDING not in OPERATOR_TRANSITIONS.get(old.status, ()):
                raise _conflict("NOT_REPLAYABLE", f"it is {old.status}; that state is not left by a replay")
            if old.unsafe and old.status is Status.TIMEOUT:
                raise _conflict("NOT_REPLAYABLE", "it is unsafe and may have acted; submit a new command instead")
            if old.unsafe and old.status is Status.EXPIRED and not force:
                raise _conflict("FORCE_NEEDED", "it is unsafe and its deadline has passed; repeat with force")
            kind = "REQUEUED" if old.status is Status.MANUAL_REVIEW else "REPLAYED"
            new = _fresh(old, rows.now + expire_in)
            rows.to_the_tail(command)
            _record(rows, command, new, kind, operator)
            await rows.write()
            return rows.changes[-1]

    return await transact(work)


async def resolve(
    engine: AsyncEngine, subject: Subject, operator: Operator, status: Status, *, grace: timedelta
) -> Change:
    """Decide a review: SUCCESS or FAILED.

    Raises:
        ProblemError: it is not in review any more; nothing was written.
        DatabaseAwayError: PostgreSQL can't be reached; nothing was written.
    """

    async def work() -> Change:
        async with engine.begin() as connection:
            rows, command = await _locked(connection, grace, subject)
            old = command.now_is
            if old.status is not Status.MANUAL_REVIEW or status not in OPERATOR_TRANSITIONS[old.status]:
                raise _conflict("NOT_IN_REVIEW", f"it is {old.status}, not in review")
            new = replace(old, status=status, due_at=None)
            _record(rows, command, new, "RESOLVED", operator)
            await rows.write()
            return rows.changes[-1]

    return await transact(work)


async def _locked(connection: AsyncConnection, grace: timedelta, subject: Subject) -> tuple[LockedRows, LockedCommand]:
    """The command under its locks; an archived one is back in its lane's table, unless this is rolled back."""
    rows = LockedRows(connection, grace)
    await rows.lock([subject])
    command = rows.find(subject)
    if command is None:
        await bring_back(connection, [subject])
        rows = LockedRows(connection, grace)  # again in any case: somebody else may just have brought it back
        await rows.lock([subject])
        command = rows.find(subject)
    if command is None:
        raise ProblemError(HTTPStatus.NOT_FOUND, "COMMAND_UNKNOWN", f"no command {subject.command_id} is known")
    return rows, command


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


def _record(rows: LockedRows, command: LockedCommand, new: Snapshot, kind: str, operator: Operator) -> None:
    note = {
        "REPLAYED": "sent again by an operator",
        "REQUEUED": "sent again by an operator after review",
        "RESOLVED": f"decided by an operator: {new.status}",
    }[kind]
    detail = {"by": operator.name, "why": operator.why}
    rows.record(command, new, kind=kind, note=note, attempt=new.attempt, detail=detail, table=OPERATOR_TRANSITIONS)


def _conflict(code: str, detail: str) -> ProblemError:
    return ProblemError(HTTPStatus.CONFLICT, code, detail)
