"""Accepting commands: idempotency, checks, storing. Requests that arrive together are stored together."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from http import HTTPStatus

import structlog
import uuid_utils
from sqlalchemy import RowMapping
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from laneway_center import metrics
from laneway_center.policies import resolve
from laneway_center.settings import CenterSettings
from laneway_center.store.admission import Entered, enter
from laneway_center.store.backlog import Backlog
from laneway_center.store.commands import show_commands
from laneway_center.store.database import DatabaseAwayError, transact
from laneway_center.store.enqueue import Asked, Key, NewCommand, known_bodies, scopes
from laneway_center.store.history import refuse_archived
from laneway_center.traces import note_changes
from laneway_center.wakeups import Wakeups
from laneway_shared import failpoints
from laneway_shared.constraints import violation
from laneway_shared.messages import Constraints
from laneway_shared.problems import ProblemError

log = structlog.get_logger(__name__)

QUEUED_MOST = 20_000  # commands waiting to be stored
GROUP_MOST = 1000  # commands stored in one transaction
DEFAULT_PRIORITY = 1  # 0 is for what must go first, revocations above all


@dataclass(frozen=True, kw_only=True)
class Submission:
    """A command as asked for, its form checked. `body_hash` covers everything but the id."""

    tenant_id: int
    command_id: str
    body_hash: str
    device_id: int
    point_id: int
    type: str
    value: str | None = None
    expire_in_s: float | None = None
    expire_at: datetime | None = None
    priority: int | None = None
    intent_key: str | None = None
    merge: str | None = None
    purpose: str | None = None
    gate: str | None = None
    retry_safety: str | None = None
    max_attempts: int | None = None
    source: str = "HTTP"
    source_user_id: int | None = None
    occurred_at: datetime | None = None
    id_made_here: bool = False  # such an id has never been used before

    @property
    def key(self) -> Key:
        """Who it is."""
        return self.tenant_id, self.command_id

    @property
    def asked(self) -> Asked:
        """What the tables are asked about it."""
        command_id = None if self.id_made_here else self.command_id
        return Asked(self.tenant_id, command_id, self.device_id, self.point_id)


@dataclass(frozen=True, kw_only=True)
class Accepted:
    """The command as it stands; `created` is False when it had been submitted before."""

    command: RowMapping
    created: bool


Answer = Accepted | ProblemError


def new_command_id() -> str:
    """An id for a command whose caller gave none: UUIDv7, so that ids sort by time."""
    return str(uuid_utils.uuid7())


class Intake:
    """Groups what is waiting into one transaction at a time per worker; never waits for more to come."""

    def __init__(self, engine: AsyncEngine, settings: CenterSettings, wakeups: Wakeups) -> None:
        self._engine = engine
        self._settings = settings
        self._wakeups = wakeups
        self._queued = 0
        self._backlog = Backlog(settings.waiting_limit)
        self._waiting: asyncio.Queue[tuple[Sequence[Submission], asyncio.Future[list[Answer]]]] = asyncio.Queue(2000)

    async def submit(self, submissions: Sequence[Submission]) -> list[Answer]:
        """Store what passes the checks; one answer per submission, in order.

        Raises:
            DatabaseAwayError: PostgreSQL can't be reached; submitting the same again is safe.
        """
        if self._queued >= QUEUED_MOST:  # it would wait longer than anybody waits for it
            raise DatabaseAwayError
        answers: asyncio.Future[list[Answer]] = asyncio.get_running_loop().create_future()
        self._queued += len(submissions)
        try:
            await self._waiting.put((submissions, answers))
        except asyncio.CancelledError:
            self._queued -= len(submissions)
            raise
        return await answers

    async def run(self) -> None:
        """Serve until cancelled."""
        while True:
            group = [await self._waiting.get()]
            count = len(group[0][0])
            while count < GROUP_MOST and not self._waiting.empty():
                group.append(self._waiting.get_nowait())
                count += len(group[-1][0])
            self._queued -= count
            group = [one for one in group if not one[1].done()]  # whose caller has gone, nobody told that it is stored
            if group:
                await self._serve(group)

    async def _serve(self, group: list[tuple[Sequence[Submission], asyncio.Future[list[Answer]]]]) -> None:
        everything = [submission for submissions, _ in group for submission in submissions]
        try:
            answers = await self.store(everything)
        except Exception as error:  # noqa: BLE001 - whoever waits gets it; the worker goes on
            if len(group) > 1 and not isinstance(error, DatabaseAwayError):
                for one in group:  # one request's trouble must not fail the others
                    await self._serve([one])
                return
            for _, future in group:
                if not future.done():
                    future.set_exception(error)
            return
        at = 0
        for submissions, future in group:
            if not future.done():
                future.set_result(answers[at : at + len(submissions)])
            at += len(submissions)

    async def store(self, submissions: Sequence[Submission]) -> list[Answer]:
        """One transaction for all."""
        archived: dict[Key, str] = {}  # ids that turned out to be in the history; then everything is done again

        async def work() -> tuple[list[Answer], Entered]:
            async with self._engine.begin() as connection:
                return await self._store(connection, submissions, archived)

        answers, entered = await transact(work)
        failpoints.hit("intake.stored")
        note_changes(entered.withdrawn)
        self._wakeups.commands_moved(change.command_id for change in entered.withdrawn)
        created = [a.command for a in answers if isinstance(a, Accepted) and a.created]
        if created:
            metrics.ACCEPTED.inc(len(created))
            self._wakeups.lanes_ready({row["driver"] for row in created})
            for row in created:
                log.info("enqueue", commandId=str(row["command_id"]), tenantId=row["tenant_id"],
                         laneKey=row["lane_key"], intentKey=row["intent_key"], attempt=0)  # fmt: skip
        return answers

    @staticmethod
    async def _shown(connection: AsyncConnection, keys: Sequence[Key], entered: Entered) -> dict[Key, RowMapping]:
        """Commands as they stand: as just stored, unless another one of the same group has superseded them."""
        gone = {(change.tenant_id, change.command_id) for change in entered.withdrawn}
        as_stored = {key: row for key, row in entered.inserted.items() if key not in gone}
        others = {key for key in keys if key not in as_stored}
        return as_stored | (await show_commands(connection, list(others)) if others else {})

    async def _store(
        self, connection: AsyncConnection, submissions: Sequence[Submission], archived: dict[Key, str]
    ) -> tuple[list[Answer], Entered]:
        first: dict[Key, Submission] = {}
        for submission in submissions:
            first.setdefault(submission.key, submission)
        rows = await scopes(connection, [s.asked for s in first.values()])
        known = {key: row["known_body"].hex() for key, row in zip(first, rows, strict=True) if row["known_body"]}
        known = archived | known
        fresh: list[Submission] = []
        refusals: dict[Key, ProblemError] = {}
        passed: list[NewCommand] = []
        for (key, submission), scope in zip(first.items(), rows, strict=True):
            if key in known:
                continue
            fresh.append(submission)
            try:
                passed.append(check(submission, scope, self._settings))
            except ProblemError as problem:
                refusals[submission.key] = problem
        if passed:
            refusals |= await self._backlog.refuse(connection, passed)
        entering = [command for command in passed if command.key not in refusals]
        entered = await enter(connection, entering, timedelta(seconds=self._settings.grace_s))
        refusals |= entered.refused
        stored = {command.key: command.body_hash for command in entering if command.key in entered.inserted}
        bodies = known | stored
        # somebody else may have stored the others before their lanes were ours: then theirs counts
        raced = await known_bodies(connection, [c.key for c in entering if c.key not in stored])
        bodies |= raced
        refusals = {key: problem for key, problem in refusals.items() if key not in raced}
        entered.live = {key: live for key, live in entered.live.items() if key not in raced}
        await refuse_archived(connection, [s.key for s in fresh if not s.id_made_here], archived)
        shown = await self._shown(connection, [*bodies, *entered.live.values()], entered)
        answers: list[Answer] = []
        new = set(entered.inserted)
        for submission in submissions:
            key = submission.key
            body = bodies[key] if key in bodies else first[key].body_hash
            if body != submission.body_hash:
                answers.append(_reused(submission))
            elif key in refusals:
                answers.append(refusals[key])
            else:
                answers.append(Accepted(command=shown[entered.live.get(key, key)], created=key in new))
                new.discard(key)  # asked for twice in one group: only the first made it
        return answers, entered


def _reused(submission: Submission) -> ProblemError:
    return ProblemError(
        HTTPStatus.CONFLICT,
        "COMMAND_ID_REUSED",
        f"commandId {submission.command_id} was used for another command; take a new id for a new command",
    )


# ------------------------------------------------------------------------------------------- checks
def check(submission: Submission, scope: RowMapping, settings: CenterSettings) -> NewCommand:
    """The command to store.

    Raises:
        ProblemError: the reason why it is refused.
    """
    _check_registry(submission, scope)
    expire_at = _deadline(submission, scope["now"], settings)
    if submission.type == "WRITE":
        _check_value(submission.value, scope)
    elif submission.value is not None:
        raise _unfit("VALUE_UNEXPECTED", "a READ takes no value")
    if not scope["driver_online"]:
        raise ProblemError(
            HTTPStatus.CONFLICT,
            "DRIVER_OFFLINE",
            f"driver {scope['driver']} has no live instance; try again when it is back",
        )
    unsafe = (submission.retry_safety or scope["retry_safety"]) == "unsafe"
    if submission.type == "READ" and submission.retry_safety is None:
        unsafe = False  # reading twice does no harm, whatever writing does
    purpose = submission.purpose or scope["purpose"]
    said = {"gate": submission.gate, "max_attempts": submission.max_attempts}
    terms = resolve(scope, defaults=settings.lane_defaults, command=said, unsafe=unsafe)
    return NewCommand(
        command_id=submission.command_id,
        tenant_id=submission.tenant_id,
        type=submission.type,
        device_id=submission.device_id,
        point_id=submission.point_id,
        lane_key=scope["lane_key"],
        lane_id=scope["lane_id"],
        placement=scope["placement"],
        driver=scope["driver"],
        priority=_priority(submission.priority, purpose),
        request_value=submission.value,
        source=submission.source,
        source_user_id=submission.source_user_id,
        intent_key=submission.intent_key,
        purpose=purpose,
        body_hash=submission.body_hash,
        retry_safety="unsafe" if unsafe else "safe",
        gate=terms["gate"].value,
        retry=terms["retry"].value,
        review_policy=terms["review_policy"].value,
        ack_expected=submission.type == "READ" or scope["ack"] != "none",
        ack_timeout_ms=terms["ack_timeout_ms"].value,
        call_timeout_ms=scope["call_timeout_ms"] or round(settings.call_timeout_s * 1000),
        max_attempts=terms["max_attempts"].value,
        occurred_at=submission.occurred_at or scope["now"],
        expire_at=expire_at,
        merge=submission.merge,
        depth_limit=terms["depth_limit"].value,
        on_full=terms["on_full"].value,
        waiting_limit=scope["waiting_limit"] or settings.driver_waiting_limit,
    )


def _priority(given: int | None, purpose: str | None) -> int:
    if given is not None:
        return given
    return 0 if purpose == "revoke" else DEFAULT_PRIORITY


def _check_registry(submission: Submission, scope: RowMapping) -> None:
    device, point = submission.device_id, submission.point_id
    if not scope["device_known"]:
        raise ProblemError(HTTPStatus.NOT_FOUND, "DEVICE_UNKNOWN", f"device {device} is not in the registry")
    if not scope["point_known"]:
        raise ProblemError(HTTPStatus.NOT_FOUND, "POINT_UNKNOWN", f"device {device} has no point {point}")
    if not scope["device_enabled"]:
        raise ProblemError(HTTPStatus.CONFLICT, "DEVICE_DISABLED", f"device {device} is disabled in the registry")
    if not scope["point_enabled"]:
        raise ProblemError(HTTPStatus.CONFLICT, "POINT_DISABLED", f"point {point} is disabled in the registry")
    if not scope["driver_enabled"]:
        raise ProblemError(HTTPStatus.CONFLICT, "DRIVER_DISABLED", f"driver {scope['driver']} is disabled")
    if submission.type == "WRITE" and "W" not in scope["access"]:
        raise _unfit("POINT_READ_ONLY", f"point {point} can't be written")
    if submission.type == "READ" and "R" not in scope["access"]:
        raise _unfit("POINT_WRITE_ONLY", f"point {point} can't be read")


def _check_value(value: str | None, scope: RowMapping) -> None:
    if value is None:
        raise _unfit("VALUE_MISSING", "a WRITE needs a value")
    fault = violation(value, constraints_of(scope))
    if fault is not None:
        raise _unfit("VALUE_REFUSED", fault)


def constraints_of(row: RowMapping) -> Constraints:
    """The constraints of a point, from a row with its columns."""
    return Constraints(value_type=row["value_type"], min=row["min"], max=row["max"], step=row["step"], enum=row["enum"])


def _deadline(submission: Submission, now: datetime, settings: CenterSettings) -> datetime:
    if submission.expire_at is not None:
        expire_at = submission.expire_at
    else:
        seconds = settings.default_deadline_s if submission.expire_in_s is None else submission.expire_in_s
        expire_at = now + timedelta(seconds=min(seconds, settings.longest_deadline_s + 1))
    if expire_at <= now:
        raise _unfit("DEADLINE_PAST", f"the deadline {expire_at.isoformat()} has passed")
    if expire_at > now + timedelta(seconds=settings.longest_deadline_s):
        raise _unfit("DEADLINE_TOO_FAR", f"a deadline may be at most {settings.longest_deadline_s:g} s ahead")
    return expire_at


def _unfit(code: str, detail: str) -> ProblemError:
    return ProblemError(HTTPStatus.UNPROCESSABLE_ENTITY, code, detail)
