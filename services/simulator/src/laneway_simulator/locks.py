"""One lock: the state of its points, what it was asked to do wrong, and what is waiting at it."""

from collections import Counter, deque
from dataclasses import dataclass, field, replace

from laneway_simulator.faults import Behaviour, Decision, FaultPlan
from laneway_simulator.journal import Event
from laneway_simulator.protocol import Command

UNLOCK_POINT = "unlock"
OPEN_FOR_S = 1.0  # a pulse: the bolt is back after this
_REST = "0"  # what a point says that nobody wrote
POINT_LIMIT = 256  # points one lock remembers


@dataclass(slots=True)
class Lock:
    """A lock as it stands. No I/O and no clock: whoever plays it brings the time."""

    sn: str
    points: dict[str, str] = field(default_factory=dict)
    behaviour: Behaviour | None = None
    waiting: deque[Command] = field(default_factory=deque)
    at_work: bool = False
    open_until: float = 0.0  # epoch seconds
    opened: int = 0  # times
    counts: Counter[Event] = field(default_factory=Counter)

    def decide(self, plan: FaultPlan, msg_id: str) -> Decision:
        """What to do with the next command; a behaviour with `times` is used up by one."""
        planned = plan.decide(self.sn, msg_id)
        asked = self.behaviour
        if asked is None:
            return planned
        if asked.times is not None:
            self.behaviour = replace(asked, times=asked.times - 1) if asked.times > 1 else None
        return asked.decide(planned)

    def act(self, command: Command, now: float) -> tuple[str, str | None]:
        """Do it: the value to report, and what is worth a remark.

        Raises:
            MemoryFullError: the lock remembers no more points.
        """
        if command.value is None:
            return self.value_of(command.point, now), None
        if command.point == UNLOCK_POINT:
            return command.value, self._pulse(command.value, now)
        if command.point not in self.points and len(self.points) >= POINT_LIMIT:
            raise MemoryFullError
        self.points[command.point] = command.value
        return command.value, None

    def set_by_hand(self, points: dict[str, str]) -> None:
        """Set points without a command.

        Raises:
            MemoryFullError: the lock remembers no more points; none was set.
        """
        if len(self.points.keys() | points.keys()) > POINT_LIMIT:
            raise MemoryFullError
        self.points.update(points)

    def value_of(self, point: str, now: float) -> str:
        """What a read of the point reports."""
        if point == UNLOCK_POINT:
            return "1" if now < self.open_until else _REST
        return self.points.get(point, _REST)

    def _pulse(self, value: str, now: float) -> str:
        if value != "1":
            return "stays shut"
        self.open_until = now + OPEN_FOR_S
        self.opened += 1
        return "opened"


class MemoryFullError(Exception):
    """The lock remembers no more points."""
