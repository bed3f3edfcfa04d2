"""What each piece of evidence does to a command.

Pure: no I/O, no clock, no randomness of its own. The store locks a row, hands it in as `Snapshot`, and
writes back what `judge` returns. Each rule stands here once; the reasons are in docs/lifecycle.md.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from msgspec import Struct
from msgspec.structs import replace

from laneway_shared.lifecycle import (
    FINAL,
    LETTER_DELIVERY_LIMIT,
    LETTER_EXPIRED,
    LETTER_REJECTED,
    WAITING,
    Gate,
    ResultKind,
    RetryPlace,
    Status,
    holds_lane,
)

S, K = Status, ResultKind


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Back-off of an attempt that may be repeated, `min(cap, base * 2^n) * (1 ± jitter)`, and the usual patience."""

    base: timedelta = timedelta(seconds=2)
    cap: timedelta = timedelta(minutes=30)
    jitter: float = 0.2  # share of the delay
    ack_timeout: timedelta = timedelta(seconds=10)  # for an answer, where neither point nor device family says
    window_missed: timedelta = timedelta(milliseconds=500)  # delay after an EXPIRED start window

    def delay(self, spent: int, chance: float) -> timedelta:
        """The pause after `spent` attempts; `chance` in [-1, 1] picks the place within the jitter."""
        factor: int = 2 ** min(max(spent - 1, 0), 30)
        return min(self.cap, self.base * factor) * (1 + self.jitter * chance)


class Snapshot(Struct, frozen=True, kw_only=True, gc=False):
    """What decides about a command, as read from its locked row. Changed copies: msgspec.structs.replace."""

    status: Status
    attempt: int = 0  # number of the newest attempt; 0: never dispatched
    attempts_spent: int = 0  # attempts that count against the maximum
    max_attempts: int = 3
    unsafe: bool = False
    gate: Gate = Gate.ACK
    retry: RetryPlace = RetryPlace.STRICT
    ack_expected: bool = True  # False with `ack: none`: handed over is done
    ack_timeout: timedelta | None = None  # as the point says
    expire_at: datetime  # bounds the start of a call
    start_by: datetime | None = None  # this attempt calls the device before this or not at all
    quiet_at: datetime | None = None  # start_by + callTimeout + grace: the device can't act for it any more
    grace: timedelta = timedelta(seconds=5)
    started: bool = False  # STARTED (or more) is known of the newest attempt
    unknown: bool = False  # UNKNOWN is known of the newest attempt
    letter: str | None = None  # why the broker gave the newest attempt's message up
    called: bool = False  # some attempt called the device, or may have
    may_have_run: bool = False  # of some attempt nobody knows whether it had effect
    absent: bool = False  # RETRY_WAIT or review was entered because no answer came
    ack_due_at: datetime | None = None
    due_at: datetime | None = None  # when the scheduler has to ask
    next_visible_at: datetime | None = None
    response_value: str | None = None
    error_code: str | None = None
    error_message: str | None = None

    @property
    def holds_lane(self) -> bool:
        """Whether no other command of the lane may be in flight."""
        return holds_lane(self.status, self.gate, self.retry)

    @property
    def waits(self) -> bool:
        """Whether it counts in the lane's depth."""
        return self.status in WAITING

    @property
    def absence_at(self) -> datetime | None:
        """The moment from which no answer means something (rules 4 and 5)."""
        if self.status in WAITING:
            return self.expire_at
        if self.status is S.AWAITING_ACK:
            return _latest(self.ack_due_at, self.quiet_at)
        if self.status in (S.DISPATCHING, S.SENT):
            if self.unsafe and not self.started and not self.unknown and self.start_by:
                return self.start_by + self.grace
            return self.quiet_at
        return None


class Evidence(Struct, frozen=True, kw_only=True, gc=False):
    """One result about a command. `attempt` None means the newest (a device that doesn't echo it)."""

    kind: ResultKind
    attempt: int | None = None
    at: datetime | None = None  # DUE: the database's time at which absence was seen
    retryable: bool = False
    response_value: str | None = None
    error_code: str | None = None
    error_message: str | None = None
    ack_timeout: timedelta | None = None
    reason: str | None = None  # LETTER: expired, rejected, delivery_limit


class Verdict(Struct, frozen=True, kw_only=True):
    """What the evidence did: the row as it is now, and a sentence for the timeline."""

    snapshot: Snapshot
    note: str


def judge(  # noqa: PLR0911 - a guard per line is the table
    row: Snapshot, evidence: Evidence, *, now: datetime, policy: Policy = Policy(), chance: float = 0.0
) -> Verdict:
    """Apply one piece of evidence to a command; what fits no rule changes nothing and is only noted.

    Args:
        row: the command as locked.
        evidence: what is said about it.
        now: the database's clock.
        policy: back-off and patience.
        chance: a number in [-1, 1] for the jitter.
    """
    case = _Case(row, evidence, now, policy, chance)
    if row.status in FINAL:
        return case.noted("came after the end")
    if evidence.attempt is not None and evidence.attempt > row.attempt:
        return case.noted("names an attempt that was never made")
    if evidence.attempt is not None and evidence.attempt < row.attempt:
        return case.noted(f"is about attempt {evidence.attempt}, the newest is {row.attempt}")
    if evidence.kind is K.DUE:
        return case.due()
    if row.attempt == 0:
        return case.noted("came before the first attempt")
    if evidence.kind is K.SUCCESS:
        return case.succeeded()
    if row.status in (S.DISPATCHING, S.SENT):
        return case.in_flight()
    if row.status is S.AWAITING_ACK:
        return case.awaiting()
    if row.status is S.MANUAL_REVIEW:
        return case.reviewed()
    return case.waiting()


def expire_unsent(row: Snapshot) -> Status | None:
    """The final state of a command whose deadline passed while it waited (its attempts are all quiet)."""
    if row.status not in WAITING:
        return None
    if not row.called:
        return S.EXPIRED
    return S.TIMEOUT if row.may_have_run else S.FAILED


@dataclass(frozen=True)
class _Case:
    """One judgement in the making."""

    row: Snapshot
    evidence: Evidence
    now: datetime
    policy: Policy
    chance: float

    def noted(self, note: str) -> Verdict:
        return Verdict(snapshot=self.row, note=note)

    def changed(self, note: str, row: Snapshot) -> Verdict:
        return Verdict(snapshot=replace(row, due_at=row.absence_at), note=note)

    def ended(self, status: Status, note: str, row: Snapshot | None = None) -> Verdict:
        said = self.evidence
        row = row or self.row
        keep_error = said.error_code is None and said.error_message is None
        return self.changed(
            note,
            replace(
                row,
                status=status,
                next_visible_at=None,
                error_code=row.error_code if keep_error else said.error_code,
                error_message=row.error_message if keep_error else said.error_message,
            ),
        )

    # ------------------------------------------------------------------ answers of the device
    def succeeded(self) -> Verdict:
        row = replace(
            self.row, response_value=self.evidence.response_value, error_code=None, error_message=None, called=True
        )
        return self.ended(S.SUCCESS, "the device did it", row)

    def refused(self) -> Verdict:
        row, said = replace(self.row, called=True), self.evidence
        if not said.retryable:
            return self.ended(S.FAILED, "refused", row)
        if row.status is S.AWAITING_ACK and row.gate is Gate.TRANSPORT:
            return self.ended(S.FAILED, "refused; the lane has moved on, so it is not tried again", row)
        if said.attempt is None and row.unsafe and row.attempt > 1:
            return self.unknown("refused, but the answer doesn't say which attempt")
        return self.again(row, "refused for now", cost=1)

    def handed_over(self) -> Verdict:
        row, said = replace(self.row, started=True, called=True), self.evidence
        if not row.ack_expected and said.kind is K.TRANSMITTED:
            return self.ended(S.SUCCESS, "handed over; no answer is expected", row)
        due = self.now + (row.ack_timeout or said.ack_timeout or self.policy.ack_timeout)
        return self.changed("handed over; the answer is due", replace(row, status=S.AWAITING_ACK, ack_due_at=due))

    def unknown(self, note: str) -> Verdict:
        row = replace(
            self.row,
            unknown=True,
            called=True,
            may_have_run=True,
            error_code=self.evidence.error_code or self.row.error_code,
            error_message=self.evidence.error_message or self.row.error_message,
        )
        if row.quiet_at is not None and self.now < row.quiet_at:
            return self.changed(f"{note}; judged when the device can't act any more", row)
        return self.outcome_unknown(row)

    # ---------------------------------------------------------------------- by state
    def in_flight(self) -> Verdict:  # noqa: PLR0911 - one line per kind of evidence is the table
        kind = self.evidence.kind
        if kind is K.STARTED:
            return self.changed("about to call the device", replace(self.row, started=True))
        if kind in (K.TRANSMITTED, K.ACCEPTED):
            return self.handed_over()
        if kind is K.FAILED:
            return self.refused()
        if kind is K.NOT_SENT:
            return self.again(self.row, "certainly not sent", cost=1)
        if kind is K.RELEASED:
            return self.again(self.row, "given back unstarted", cost=0, delay=timedelta())
        if kind is K.EXPIRED:
            return self.again(self.row, "not started within its window", cost=0, delay=self.policy.window_missed)
        if kind is K.UNKNOWN:
            return self.unknown("outcome unknown")
        if kind is K.LETTER:
            row = replace(self.row, letter=self.evidence.reason or LETTER_EXPIRED)
            return self.changed("the broker gave the message up; judged at the bound", row)
        return self.noted("nothing is known from this process")

    def awaiting(self) -> Verdict:
        kind = self.evidence.kind
        if kind is K.FAILED:
            return self.refused()
        if kind is K.UNKNOWN:
            row = replace(self.row, unknown=True, may_have_run=True)
            return self.changed("outcome unknown; judged when the answer is overdue", row)
        return self.noted("the device's answer is due")

    def reviewed(self) -> Verdict:
        if self.evidence.kind is K.FAILED:
            return self.ended(S.FAILED, "late evidence: refused")
        if self.evidence.kind in (K.NOT_SENT, K.EXPIRED, K.RELEASED) and self.evidence.attempt is not None:
            return self.ended(S.FAILED, "late evidence: it was certainly not done")
        return self.noted("in review")

    def waiting(self) -> Verdict:
        if self.evidence.kind is K.STARTED and self.row.status is S.RETRY_WAIT and self.row.absent:
            row = replace(self.row, started=True, called=True, may_have_run=True)
            if row.unsafe:
                return self.outcome_unknown(row)
            return self.changed("it had been started after all", row)
        return self.noted("waits for its turn")

    # ------------------------------------------------------------------------ absence
    def due(self) -> Verdict:
        row, seen = self.row, self.evidence.at
        bound = row.absence_at
        if seen is None or bound is None or not bound <= seen <= self.now:
            return self.noted("asked too early, or at a time still to come")
        if row.status in WAITING:
            return self.out_of_time(row, "the deadline passed while it waited")
        if row.status is S.AWAITING_ACK:
            return self.outcome_unknown(replace(row, may_have_run=True))
        cost = 0 if row.letter == LETTER_EXPIRED else 1
        unreadable = row.letter == LETTER_REJECTED and not row.started and not row.unknown
        never_called = row.unsafe and not row.started and not row.unknown
        if unreadable or (never_called and row.letter == LETTER_DELIVERY_LIMIT):
            return self.ended(S.DEAD, f"no driver could run it ({row.letter})", _blame(row, row.letter or ""))
        if never_called:
            return self.again(row, "never started", cost=cost, absent=True)
        return self.outcome_unknown(replace(row, called=True, may_have_run=True), cost=cost)

    def outcome_unknown(self, row: Snapshot, cost: int = 1) -> Verdict:
        """The bound has passed and nobody knows: safe commands go again, for unsafe ones a person decides."""
        if row.error_code is None or not row.unknown:
            row = replace(row, error_code="NO_ANSWER", error_message="no answer came in time")
        if row.unsafe:
            row = replace(row, may_have_run=True, absent=True)
            return self.ended(S.MANUAL_REVIEW, "nobody knows whether it acted; a person decides", row)
        if row.status is S.AWAITING_ACK and row.gate is Gate.TRANSPORT:
            return self.ended(S.TIMEOUT, "no answer; the lane has moved on, so it is not tried again", row)
        return self.again(row, "no answer", cost=cost, absent=True)

    # ------------------------------------------------------------------------- retries
    def again(
        self, row: Snapshot, note: str, *, cost: int, delay: timedelta | None = None, absent: bool = False
    ) -> Verdict:
        spent = row.attempts_spent + cost
        row = replace(row, attempts_spent=spent, absent=absent)
        if cost and spent >= row.max_attempts:
            return self.ended(S.DEAD, f"{note}; {spent} attempts are used up", row)
        visible = self.now + (self.policy.delay(spent, self.chance) if delay is None else delay)
        if visible >= row.expire_at:
            return self.out_of_time(row, f"{note}; the next try would come after the deadline")
        waits = self.ended(S.RETRY_WAIT, f"{note}; tried again later", row).snapshot
        return self.changed(f"{note}; tried again later", replace(waits, next_visible_at=visible))

    def out_of_time(self, row: Snapshot, note: str) -> Verdict:
        status = expire_unsent(replace(row, status=S.RETRY_WAIT)) or S.EXPIRED
        if status is S.EXPIRED and row.error_code is None and self.evidence.error_code is None:
            row = _blame(row, "expired")
        return self.ended(status, note, row)


_BLAME = {
    "expired": ("DEADLINE", "the deadline passed before any attempt called the device"),
    LETTER_REJECTED: ("UNREADABLE", "drivers couldn't read the message"),
    LETTER_DELIVERY_LIMIT: ("DELIVERY_LIMIT", "the message came back too often without being run"),
}


def _blame(row: Snapshot, reason: str) -> Snapshot:
    code, message = _BLAME[reason]
    return replace(row, error_code=code, error_message=message)


def _latest(*instants: datetime | None) -> datetime | None:
    known = [instant for instant in instants if instant is not None]
    return max(known) if known else None
