"""What this process knows of the attempts it was given: those in hand and those it has answered."""

import time
from collections import OrderedDict
from collections.abc import Callable
from enum import IntEnum
from typing import TypeAlias

from laneway_driver.broker_port import Deliverable
from laneway_shared.messages import CommandMessage, ResultMessage

AttemptId: TypeAlias = tuple[str, int]  # commandId, attempt


class Phase(IntEnum):
    """How far an attempt in hand has come."""

    WAITING = 1
    """Waits for a slot or for its device."""
    STARTED = 2
    """Past the device lock: from here on its outcome is told, whatever happens to its delivery."""
    CALLING = 3
    """The device may be acting."""


class Attempt:
    """An attempt in hand: the command, how it came, and how far it is."""

    __slots__ = ("command", "delivery", "phase")

    def __init__(self, command: CommandMessage, delivery: Deliverable) -> None:
        self.command = command
        self.delivery = delivery
        self.phase = Phase.WAITING

    @property
    def id(self) -> AttemptId:
        """What identifies it."""
        return self.command.command_id, self.command.attempt


class AttemptMemory:
    """Attempts in hand, and the last result of those answered (up to `size`, for `ttl_s` seconds)."""

    def __init__(self, *, size: int, ttl_s: float, timer: Callable[[], float] = time.monotonic) -> None:
        self._in_hand: dict[AttemptId, Attempt] = {}
        self._answered: OrderedDict[AttemptId, tuple[float, ResultMessage]] = (
            OrderedDict()
        )  # with its end, oldest first
        self._size, self._ttl_s, self._timer = size, ttl_s, timer

    def __len__(self) -> int:
        """Attempts in hand."""
        return len(self._in_hand)

    def left(self) -> list[Attempt]:
        """Attempts in hand."""
        return list(self._in_hand.values())

    def in_hand(self, attempt: AttemptId) -> bool:
        """Whether it still runs, or waits to run, in this process.

        One whose delivery was lost before it started is dropped here: it counts as never seen.
        """
        known = self._in_hand.get(attempt)
        if known is None:
            return False
        if known.delivery.lost and known.phase is Phase.WAITING:
            self.drop(known)
            return False
        return True

    def answer(self, attempt: AttemptId) -> ResultMessage | None:
        """What was answered before, if it is remembered."""
        ends, result = self._answered.get(attempt, (0.0, None))
        return result if result is not None and self._timer() < ends else None

    def take(self, attempt: Attempt) -> None:
        """Remember that it is in hand."""
        self._in_hand[attempt.id] = attempt

    def drop(self, attempt: Attempt) -> None:
        """Forget it, as if it had never been seen."""
        if self._in_hand.get(attempt.id) is attempt:
            del self._in_hand[attempt.id]

    def keep(self, attempt: AttemptId, result: ResultMessage) -> None:
        """Remember what was answered; it isn't in hand any more."""
        self._in_hand.pop(attempt, None)
        now = self._timer()
        self._answered[attempt] = (now + self._ttl_s, result)
        self._answered.move_to_end(attempt)
        while len(self._answered) > self._size or next(iter(self._answered.values()))[0] <= now:
            self._answered.popitem(last=False)
