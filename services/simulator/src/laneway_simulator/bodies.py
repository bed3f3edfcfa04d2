"""Bodies of requests and answers over HTTP (camelCase JSON)."""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator
from pydantic.alias_generators import to_camel

from laneway_simulator.faults import Behaviour, Course
from laneway_simulator.journal import Event
from laneway_simulator.locks import POINT_LIMIT, UNLOCK_POINT, Lock

_HOUR_MS = 3_600_000
Name = Annotated[str, StringConstraints(min_length=1, max_length=128)]
Value = Annotated[str, StringConstraints(max_length=4096)]


class Body(BaseModel):
    """A JSON object; fields it doesn't know are a mistake."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True)


class BehaviourRequest(Body):
    """What a lock shall do wrong. At most one of `refuse`, `busy` and `silent`."""

    latency_ms: float | None = Field(
        None, ge=0, le=_HOUR_MS, description="Time the lock works before it acts; null: as the fault plan says."
    )
    refuse: bool = Field(default=False, description="Don't do it, answer `refused`.")
    busy: bool = Field(default=False, description="Don't do it, answer `busy` at once.")
    silent: Literal["before", "after"] | None = Field(
        None, description="Don't answer: `before`: don't act either; `after`: act."
    )
    duplicate_ack: bool = Field(default=False, description="Send the answer twice.")
    late_ack_ms: float = Field(0.0, ge=0, le=_HOUR_MS, description="Send the answer so much later; the lock goes on.")
    times: int | None = Field(None, ge=1, description="For so many commands, then back to normal; null: for good.")

    @model_validator(mode="after")
    def _one_course(self) -> Self:
        if sum((self.refuse, self.busy, self.silent is not None)) > 1:
            raise ValueError("at most one of refuse, busy and silent")
        return self

    def behaviour(self) -> Behaviour:
        """The same in the lock's terms."""
        course = Course.ACT
        if self.refuse:
            course = Course.REFUSE
        elif self.busy:
            course = Course.BUSY
        elif self.silent is not None:
            course = Course.SILENT_BEFORE if self.silent == "before" else Course.SILENT_AFTER
        return Behaviour(
            course=course,
            latency_ms=self.latency_ms,
            duplicate_ack=self.duplicate_ack,
            late_ack_ms=self.late_ack_ms,
            times=self.times,
        )


class DeviceRequest(Body):
    """A lock to create, or points of a lock to set as if somebody had done it by hand."""

    points: dict[Name, Value] = Field(default_factory=dict, max_length=POINT_LIMIT)


class BehaviourView(Body):
    """What a lock was asked to do wrong."""

    latency_ms: float | None
    refuse: bool
    busy: bool
    silent: Literal["before", "after"] | None
    duplicate_ack: bool
    late_ack_ms: float
    times: int | None = Field(description="Commands it still holds for.")

    @classmethod
    def of(cls, behaviour: Behaviour) -> Self:
        """The view of a behaviour."""
        course = behaviour.course
        silent: Literal["before", "after"] | None = None
        if course in (Course.SILENT_BEFORE, Course.SILENT_AFTER):
            silent = "before" if course is Course.SILENT_BEFORE else "after"
        return cls(
            latency_ms=behaviour.latency_ms,
            refuse=course is Course.REFUSE,
            busy=course is Course.BUSY,
            silent=silent,
            duplicate_ack=behaviour.duplicate_ack,
            late_ack_ms=behaviour.late_ack_ms,
            times=behaviour.times,
        )


class DeviceView(Body):
    """A lock as it stands."""

    sn: str = Field(examples=["A100"])
    points: dict[str, str] = Field(description="Value of every point written so far, and of `unlock`.")
    opened: int = Field(description="Times the bolt was opened.")
    waiting: int = Field(description="Commands that wait at the lock.")
    at_work: bool
    behaviour: BehaviourView | None = Field(description="null: as the fault plan says.")
    counts: dict[Event, int] = Field(description="Events since the journal was cleared.")

    @classmethod
    def of(cls, lock: Lock, now: float) -> Self:
        """The view of a lock at `now` (epoch seconds)."""
        return cls(
            sn=lock.sn,
            points=lock.points | {UNLOCK_POINT: lock.value_of(UNLOCK_POINT, now)},
            opened=lock.opened,
            waiting=len(lock.waiting),
            at_work=lock.at_work,
            behaviour=None if lock.behaviour is None else BehaviourView.of(lock.behaviour),
            counts={event: lock.counts[event] for event in Event},
        )


class DeviceList(Body):
    """Locks in the order of their first appearance."""

    total: int
    devices: list[DeviceView]


class JournalEntry(Body):
    """One thing that happened."""

    seq: int = Field(description="Global order; never reused.")
    at: str = Field(description="ISO 8601, UTC, microseconds.", examples=["2025-03-01T08:00:00.123456Z"])
    epoch_ms: float = Field(description="The same instant in milliseconds since 1970.")
    sn: str
    event: Event
    msg_id: str | None
    command_id: str | None
    attempt: int | None
    point: str | None
    op: str | None
    value: str | None
    result: str | None
    detail: str | None


class JournalPage(Body):
    """Entries, oldest first."""

    entries: list[JournalEntry]
    last_seq: int = Field(description="Number of the newest entry there ever was, of any lock.")
    cut_entries: int = Field(description="Entries of any lock that were cut because the journal is full.")


class DeviceJournal(JournalPage):
    """What happened at one lock, oldest first."""

    sn: str


class Sent(Body):
    """What was published."""

    topic: str
    payload: str


class Health(Body):
    """The process lives, or is ready."""

    status: Literal["ok", "ready"]
