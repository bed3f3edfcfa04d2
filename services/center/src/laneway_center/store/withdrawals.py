"""Taking waiting commands back: cancelled by whoever sent them, or superseded by a newer one."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from http import HTTPStatus
from typing import Any

from msgspec.structs import replace
from sqlalchemy.ext.asyncio import AsyncEngine

from laneway_center.store.actions import Action, Operator, record_actions
from laneway_center.store.database import transact
from laneway_center.store.history import find_archived
from laneway_center.store.locked_rows import Change, LockedCommand, LockedRows, Subject
from laneway_shared.lifecycle import FINAL, WAITING, Status
from laneway_shared.problems import ProblemError


@dataclass(frozen=True)
class Withdrawal:
    """Why a waiting command ends undone."""

    status: Status
    code: str
    note: str


REPLACED = Withdrawal(Status.SUPERSEDED, "REPLACED", "a newer command of the same intent takes its place")
REVOKED = Withdrawal(Status.SUPERSEDED, "REVOKED", "what it grants is revoked by a newer command")
DROPPED = Withdrawal(Status.SUPERSEDED, "DROPPED", "given up for a newer command: the lane was full")
OVERTAKEN = Withdrawal(Status.SUPERSEDED, "OVERTAKEN", "not tried again: a newer command of the same intent waits")
CANCELLED = Withdrawal(Status.CANCELLED, "CANCELLED", "withdrawn by the caller")


def withdraw(rows: LockedRows, command: LockedCommand, why: Withdrawal, detail: Mapping[str, Any]) -> None:
    """End a locked waiting command.

    Raises:
        TransitionRefusedError: it doesn't wait; nothing must be written.
    """
    ended = replace(
        command.now_is,
        status=why.status,
        next_visible_at=None,
        due_at=None,
        error_code=why.code,
        error_message=why.note,
    )
    rows.record(command, ended, kind=why.status, note=why.note, attempt=command.now_is.attempt, detail=detail)


async def cancel(
    engine: AsyncEngine, subject: Subject, *, grace: timedelta, by: str | None = None, why: str | None = None
) -> Change | None:
    """Withdraw a command that hasn't been sent, or waits for its next attempt; None: it was cancelled before.

    With `by`, an operator acts, and it is written down among the operators' actions.

    Raises:
        ProblemError: there is no such command, or it is too late; nothing was written.
        DatabaseAwayError: PostgreSQL can't be reached; nothing was written.
    """

    async def work() -> Change | None:
        async with engine.begin() as connection:
            rows = LockedRows(connection, grace)
            await rows.lock([subject])
            command = rows.find(subject) or await find_archived(connection, subject, rows)
            if command is None:
                raise ProblemError(HTTPStatus.NOT_FOUND, "COMMAND_UNKNOWN", f"no command {subject.command_id} is known")
            status = command.now_is.status
            if status is Status.CANCELLED:
                return None
            if status not in WAITING:
                raise ProblemError(HTTPStatus.CONFLICT, "TOO_LATE", _too_late(command))
            withdraw(rows, command, CANCELLED, {"by": by, "why": why})
            await rows.write()
            change = rows.changes[-1]
            if by is not None:
                act = Action(
                    action="command.cancel",
                    subject=change.command_id,
                    tenant_id=change.tenant_id,
                    before={"status": change.before},
                    after={"status": change.after},
                )
                await record_actions(connection, Operator(name=by, why=why or ""), [act])
            return change

    return await transact(work)


def _too_late(command: LockedCommand) -> str:
    now_is = command.now_is
    if now_is.status in FINAL:
        return f"it has ended already: {now_is.status}"
    if now_is.status is Status.AWAITING_ACK:
        return "the device has been called; its answer decides"
    if now_is.status is Status.MANUAL_REVIEW:
        return "it may have acted; a review decides"
    return f"attempt {now_is.attempt} is on its way to the device and can't be called back"
