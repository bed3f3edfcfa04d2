"""What a lock does wrong: by seed (a plan of shares) or by request (a behaviour set over HTTP).

A decision depends on the seed, the lock and the message only. The order in which messages arrive
changes nothing, so a run can be repeated although everything in it is concurrent.
"""

from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b
from struct import Struct

_DRAWS = Struct(">4Q")
_WHOLE = 2.0**64


class Course(StrEnum):
    """What becomes of one command at the lock."""

    ACT = "act"
    """Done and answered."""
    REFUSE = "refuse"
    """Not done; answered `refused`."""
    BUSY = "busy"
    """Not done; answered `busy`."""
    SILENT_BEFORE = "silentBefore"
    """Not done, no answer."""
    SILENT_AFTER = "silentAfter"
    """Done, no answer."""


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What one lock does with one command."""

    course: Course = Course.ACT
    latency_ms: float = 0.0  # time the lock works before it acts
    duplicate_ack: bool = False  # the answer is sent twice
    late_ack_ms: float = 0.0  # the answer leaves this much after the lock is done


@dataclass(frozen=True, kw_only=True)
class FaultPlan:
    """Shares (0 to 1) of what goes wrong without being asked for.

    Raises:
        ValueError: the four exclusive shares add up to more than 1, or the shortest latency is the longer.
    """

    seed: int = 1
    latency_min_ms: float = 0.0
    latency_max_ms: float = 0.0
    refuse: float = 0.0
    busy: float = 0.0
    silent_before: float = 0.0
    silent_after: float = 0.0
    duplicate_ack: float = 0.0
    late_ack: float = 0.0
    late_ack_ms: float = 15_000.0

    def __post_init__(self) -> None:
        if sum(share for _, share in self._courses()) > 1.0 + 1e-9:
            raise ValueError("the shares of refused, busy and silent commands add up to more than 1")
        if self.latency_min_ms > self.latency_max_ms:
            raise ValueError("the shortest latency is longer than the longest")

    def decide(self, sn: str, msg_id: str) -> Decision:
        """What the lock `sn` does with the message `msg_id`: the same whenever it is asked."""
        course_draw, latency_draw, duplicate_draw, late_draw = self._draws(sn, msg_id)
        span = self.latency_max_ms - self.latency_min_ms
        return Decision(
            course=self._course(course_draw),
            latency_ms=self.latency_min_ms + span * latency_draw,
            duplicate_ack=duplicate_draw < self.duplicate_ack,
            late_ack_ms=self.late_ack_ms if late_draw < self.late_ack else 0.0,
        )

    def _draws(self, sn: str, msg_id: str) -> list[float]:
        """Four independent numbers in [0, 1)."""
        # a surrogate can stand in a JSON string; it must not stop the lock
        name = f"{self.seed}\0{sn}\0{msg_id}".encode("utf-8", "surrogatepass")
        # the upper 53 bits only: more would round up to 1.0
        return [(draw >> 11 << 11) / _WHOLE for draw in _DRAWS.unpack(blake2b(name, digest_size=32).digest())]

    def _course(self, draw: float) -> Course:
        bound = 0.0
        for course, share in self._courses():
            bound += share
            if draw < bound:
                return course
        return Course.ACT

    def _courses(self) -> tuple[tuple[Course, float], ...]:
        return (
            (Course.REFUSE, self.refuse),
            (Course.BUSY, self.busy),
            (Course.SILENT_BEFORE, self.silent_before),
            (Course.SILENT_AFTER, self.silent_after),
        )


@dataclass(frozen=True, kw_only=True)
class Behaviour:
    """What a lock was asked to do wrong; while it lasts the plan says nothing about this lock."""

    course: Course = Course.ACT
    latency_ms: float | None = None  # None: as the plan says
    duplicate_ack: bool = False
    late_ack_ms: float = 0.0
    times: int | None = None  # commands it still holds for; None: until withdrawn

    def decide(self, planned: Decision) -> Decision:
        """The decision for one command."""
        return Decision(
            course=self.course,
            latency_ms=planned.latency_ms if self.latency_ms is None else self.latency_ms,
            duplicate_ack=self.duplicate_ack,
            late_ack_ms=self.late_ack_ms,
        )
