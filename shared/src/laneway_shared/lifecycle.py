"""The life of a command: its states, the allowed transitions, and the kinds of evidence about it.

What evidence does to a command is in judgement.py; the reasons are in docs/lifecycle.md.
"""

from collections.abc import Mapping
from enum import StrEnum


class Status(StrEnum):
    """The states of a command, each with who moves it on."""

    PENDING = "PENDING"
    """Waits its turn in the lane. The dispatcher claims it; the deadline ends it."""
    DISPATCHING = "DISPATCHING"
    """A dispatcher claimed it, the broker hasn't confirmed. The confirm, a result or the bound moves it on."""
    SENT = "SENT"
    """The broker confirmed. A result or the bound moves it on."""
    AWAITING_ACK = "AWAITING_ACK"
    """Handed to the device; its answer is due. The answer or `ack_due_at` moves it on."""
    RETRY_WAIT = "RETRY_WAIT"
    """May be tried again at `next_visible_at`. The dispatcher claims it; the deadline ends it."""
    SUCCESS = "SUCCESS"
    """The device did it (with `ack: none`: it was handed over). Final."""
    FAILED = "FAILED"
    """The device or a rule said no. Final."""
    TIMEOUT = "TIMEOUT"
    """Called, no answer in time. Final; an operator may replay a safe command."""
    EXPIRED = "EXPIRED"
    """The deadline passed and no attempt called the device. Final; an operator may replay it."""
    DEAD = "DEAD"
    """Attempts used up, or unreadable to drivers. Final; an operator may replay it."""
    MANUAL_REVIEW = "MANUAL_REVIEW"
    """Nobody knows whether an unsafe command acted. Late evidence or an operator decides."""
    CANCELLED = "CANCELLED"
    """Withdrawn by the caller. Final."""
    SUPERSEDED = "SUPERSEDED"
    """Replaced by a newer command of the same intent. Final."""


S = Status
WAITING = frozenset({S.PENDING, S.RETRY_WAIT})
FINAL = frozenset({S.SUCCESS, S.FAILED, S.TIMEOUT, S.EXPIRED, S.DEAD, S.CANCELLED, S.SUPERSEDED})
_ATTEMPT_ENDS = frozenset({S.SUCCESS, S.FAILED, S.TIMEOUT, S.EXPIRED, S.DEAD, S.MANUAL_REVIEW, S.RETRY_WAIT})
_DEADLINE_ENDS = frozenset({S.EXPIRED, S.TIMEOUT, S.FAILED})
_WITHDRAWN = frozenset({S.CANCELLED, S.SUPERSEDED})

TRANSITIONS: Mapping[Status, frozenset[Status]] = {
    S.PENDING: frozenset({S.DISPATCHING, S.SUCCESS}) | _DEADLINE_ENDS | _WITHDRAWN,
    S.DISPATCHING: frozenset({S.SENT, S.AWAITING_ACK}) | _ATTEMPT_ENDS,
    S.SENT: frozenset({S.AWAITING_ACK}) | _ATTEMPT_ENDS,
    S.AWAITING_ACK: _ATTEMPT_ENDS - {S.EXPIRED},
    S.RETRY_WAIT: frozenset({S.DISPATCHING, S.SUCCESS, S.MANUAL_REVIEW}) | _DEADLINE_ENDS | _WITHDRAWN,
    S.MANUAL_REVIEW: frozenset({S.SUCCESS, S.FAILED}),
}
"""From which state a command may go where by itself. Final states are left by an operator only."""

OPERATOR_TRANSITIONS: Mapping[Status, frozenset[Status]] = {
    S.DEAD: frozenset({S.PENDING}),
    S.EXPIRED: frozenset({S.PENDING}),
    S.TIMEOUT: frozenset({S.PENDING}),
    S.MANUAL_REVIEW: frozenset({S.SUCCESS, S.FAILED, S.PENDING}),
}
"""What an operator may do besides (TIMEOUT only for commands that are safe to repeat)."""

DEAD_ENDS = FINAL & OPERATOR_TRANSITIONS.keys()
"""Final states that an operator may leave."""


def is_dead_end(status: Status, *, unsafe: bool) -> bool:
    """Whether a command that ended so may be sent again: an unsafe one not after a call without an answer."""
    return status in DEAD_ENDS and not (unsafe and status is Status.TIMEOUT)


def sources(target: Status) -> list[Status]:
    """The states from which a command may go to `target`: the guard of every UPDATE."""
    return [source for source, targets in TRANSITIONS.items() if target in targets]


class ResultKind(StrEnum):
    """What a message on the result queue says about an attempt."""

    STARTED = "STARTED"
    """About to call the device (unsafe commands; confirmed before the call)."""
    TRANSMITTED = "TRANSMITTED"
    """Handed to the transport."""
    ACCEPTED = "ACCEPTED"
    """The platform took it and gave an operation id."""
    IN_PROGRESS = "IN_PROGRESS"
    """Device or platform still works on it."""
    SUCCESS = "SUCCESS"
    """The device did it."""
    FAILED = "FAILED"
    """The device said no; `retryable` says whether it may be asked again."""
    NOT_SENT = "NOT_SENT"
    """Certainly not sent."""
    RELEASED = "RELEASED"
    """Given back unstarted by a driver that drains."""
    EXPIRED = "EXPIRED"
    """The start window or the deadline passed before the call."""
    UNKNOWN = "UNKNOWN"
    """The call may or may not have had effect."""
    REDELIVERED = "REDELIVERED"
    """A copy whose original another process may be running; not run."""
    LETTER = "LETTER"
    """The broker gave the message up."""
    DUE = "DUE"
    """The bound for an answer has passed, says the scheduler."""
    DUPLICATE = "DUPLICATE"
    """This attempt still runs here."""
    STALE = "STALE"
    """The lane token is older than one already seen."""


K = ResultKind
LETTER_EXPIRED = "expired"
LETTER_REJECTED = "rejected"
LETTER_DELIVERY_LIMIT = "delivery_limit"


class Gate(StrEnum):
    """When the next command of the lane may go."""

    ACK = "ack"
    """After the device's answer."""
    TRANSPORT = "transport"
    """After the hand-over to the transport."""


class RetryPlace(StrEnum):
    """Where a command waits for its next attempt."""

    STRICT = "strict"
    """At the head: the lane waits with it."""
    RELAXED = "relaxed"
    """At the tail: the others go first."""


def holds_lane(status: Status, gate: Gate, retry: RetryPlace) -> bool:
    """Whether a command in this state keeps its lane busy. The database's in-flight index says the same."""
    if status in (S.DISPATCHING, S.SENT):
        return True
    if status is S.AWAITING_ACK:
        return gate is Gate.ACK
    return status is S.RETRY_WAIT and retry is RetryPlace.STRICT
