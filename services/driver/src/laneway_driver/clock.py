"""The center's time as a driver knows it, without trusting its own wall clock."""

import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

DRIFT = 2e-4
"""How far two clocks may drift apart per second (200 ppm, four times what quartz does)."""
JUMP_S = 60.0
"""A message is never older than this (its TTL is shorter): a larger gap means a wrong clock somewhere."""
JUMP_WITNESSES = 3
"""So many messages in a row must agree on a gap before it is believed."""
TRUST_S = 1.0
"""A first message that agrees with the own wall clock this closely is as fresh as it says."""
WITNESSES_APART_S, WITNESSES_AGREE_S = 1.0, 0.5
"""Where it doesn't, two messages must: published this far apart, and showing the same difference this closely."""
WITNESSES_KEPT = 16
STALE_S = 0.5
"""With more than this given up to drift since the last message that set it, the clock has to be borne out anew."""


def since_boot() -> float:
    """Seconds on a clock that nobody sets, and that goes on while the machine is suspended (where there is one)."""
    number = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if number is None else time.clock_gettime(number)


class CenterClock:
    """The own monotonic clock, corrected by the largest `publishedAt - receivedAt` seen.

    A message is received after it was published, so each difference is a lower bound of the true one: this
    clock never runs ahead of the center's, and lags by the shortest way a message has had. An old
    difference loses `DRIFT` per second of age, so that clocks that drift apart don't pass each other.
    A single message with an absurd time (made by hand) changes nothing; a step of the center's clock,
    which all messages show, is followed.

    A clock that has seen one message can't tell a fresh message from one that was held back for a minute (by a
    frozen dispatcher, say). It is `trusted` once a message agrees with the wall clock, or two messages published at
    different times agree with each other: what was held back arrives together, and so disagrees.
    """

    def __init__(self, monotonic: Callable[[], float] = since_boot, wall: Callable[[], float] = time.time) -> None:
        self._monotonic = monotonic
        self._wall = wall
        self._difference: float | None = None  # seconds; center (Unix time) minus monotonic
        self._seen_at = 0.0  # monotonic seconds at which `_difference` was taken
        self._doubts: list[float] = []  # differences in a row that contradict it
        self._witnesses: deque[tuple[float, float]] = deque(maxlen=WITNESSES_KEPT)  # published, difference
        self.trusted = False  # whether it may be said of a message that its start window is still open

    def learn(self, published_at: datetime) -> None:
        """Take in the center's time on a message that has just been received for the first time."""
        received_at = self._monotonic()
        seen = published_at.timestamp() - received_at
        if DRIFT * (received_at - self._seen_at) > STALE_S:
            self.trusted = False
        if not self.trusted:
            self._look_for_trust(published_at.timestamp(), seen, received_at)
        known = self._known(received_at)
        if known is not None and abs(seen - known) > JUMP_S:
            if self._doubts and abs(seen - self._doubts[0]) > JUMP_S:
                self._doubts.clear()
            self._doubts.append(seen)
            if len(self._doubts) < JUMP_WITNESSES:
                return
            seen, known = max(self._doubts), None
        self._doubts.clear()
        if known is None or seen >= known:
            self._difference, self._seen_at = seen, received_at

    def _look_for_trust(self, published: float, seen: float, received_at: float) -> None:
        agreeing = [
            other
            for earlier, other in self._witnesses
            if abs(published - earlier) >= WITNESSES_APART_S and abs(seen - other) <= WITNESSES_AGREE_S
        ]
        self._witnesses.append((published, seen))
        if agreeing or abs(seen - (self._wall() - received_at)) <= TRUST_S:
            self.trusted = True
            self._witnesses.clear()
            known = self._known(received_at)
            if known is None or abs(seen - known) > JUMP_S:  # an absurd message came first
                self._difference, self._seen_at = max([seen, *agreeing]), received_at

    def now(self) -> datetime:
        """The center's time, aware, UTC. Before the first message: this machine's wall clock."""
        at = self._monotonic()
        known = self._known(at)
        return datetime.fromtimestamp(self._wall() if known is None else at + known, UTC)

    def wall_offset(self) -> timedelta | None:
        """This machine's wall clock minus the center's time; None before the first message."""
        at = self._monotonic()
        known = self._known(at)
        return None if known is None else timedelta(seconds=self._wall() - (at + known))

    def _known(self, at: float) -> float | None:
        if self._difference is None:
            return None
        return self._difference - DRIFT * (at - self._seen_at)
