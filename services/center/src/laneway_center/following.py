"""Who waits for news of which commands: callers of `?wait=` and streams, in this process and in others."""

import asyncio
import contextlib
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

MOST = 1000  # who may wait in one process; each costs a look a second
HEARD_FOR_S = 6.0  # how long it counts that somebody waits elsewhere; they say so every 2 s
TAIL = 12  # hexadecimal digits that name a command in a wake-up: twins only wake somebody for nothing


@dataclass(eq=False)
class Follower:
    """One who waits for news of one command."""

    command_pk: int | None  # None: not known yet
    ends_only: bool = False  # it asks whether the command has ended, and for nothing in between
    newest: int = 0  # line of the timeline that the last look saw
    news: asyncio.Event = field(default_factory=asyncio.Event)

    async def wait(self, timeout_s: float) -> bool:
        """Until there may be news, or the time is over (False)."""
        try:
            async with asyncio.timeout(timeout_s):
                await self.news.wait()
        except TimeoutError:
            return False
        self.news.clear()
        return True


class Followers:
    """All who wait in this process, and whether anybody waits in another one."""

    def __init__(self, arrived: asyncio.Event) -> None:
        """`arrived` is set when somebody begins to wait."""
        self._by_tail: dict[str, set[Follower]] = {}
        self._count = 0
        self._elsewhere_until = 0.0
        self._arrived = arrived
        self.closed = False

    @property
    def full(self) -> bool:
        """Whether no more may wait here."""
        return self._count >= MOST

    @property
    def here(self) -> bool:
        """Whether anybody waits in this process."""
        return bool(self._by_tail)

    @property
    def elsewhere(self) -> bool:
        """Whether anybody said lately that somebody waits in another process."""
        return time.monotonic() < self._elsewhere_until

    def heard(self) -> None:
        """Somebody waits in another process."""
        self._elsewhere_until = time.monotonic() + HEARD_FOR_S

    @contextlib.contextmanager
    def follow(self, command_id: str, command_pk: int | None = None, *, ends_only: bool = False) -> Iterator[Follower]:
        """Wait for news of a command inside the block. What happened before has to be read after entering it."""
        follower, tail = Follower(command_pk, ends_only), tail_of(command_id)
        self._by_tail.setdefault(tail, set()).add(follower)
        self._count += 1
        self._arrived.set()
        try:
            yield follower
        finally:
            self._count -= 1
            self._by_tail[tail].discard(follower)
            if not self._by_tail[tail]:
                del self._by_tail[tail]

    def tell(self, tails: Iterable[str], *, going_on: bool) -> None:
        """Wake those who wait for these. `going_on`: none of them has ended by what happened."""
        for tail in tails:
            for follower in self._by_tail.get(tail, ()):
                if not (going_on and follower.ends_only):
                    follower.news.set()

    def looked(self, newest: dict[int, int]) -> None:
        """Wake those of whose command a look found a newer line than the look before did (the first: any)."""
        for each in self._all():
            line = newest.get(each.command_pk, 0) if each.command_pk else 0
            if line > each.newest:
                each.newest = line
                each.news.set()

    def commands(self) -> list[int]:
        """Row ids of the commands somebody waits for."""
        return sorted({each.command_pk for each in self._all() if each.command_pk})

    def close(self) -> None:
        """The process stops: whoever waits ends by itself."""
        self.closed = True
        for each in self._all():
            each.news.set()

    def _all(self) -> Iterator[Follower]:
        for group in self._by_tail.values():
            yield from group


def tail_of(command_id: str) -> str:
    """The end of an id, which is random in every version of UUID that clients use."""
    return command_id[-TAIL:]
