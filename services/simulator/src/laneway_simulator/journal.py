"""What really happened at the locks: every receipt, execution and answer, in one order, with time."""

from collections import deque
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from enum import StrEnum
from itertools import islice
from typing import Any, NamedTuple

from laneway_simulator.protocol import split_msg_id


class Event(StrEnum):
    """Kinds of entries."""

    RECEIVED = "received"
    """A message reached the lock."""
    EXECUTED = "executed"
    """The lock did it. Two of these for one message are two executions."""
    ANSWERED = "answered"
    """An answer left the lock (a lock doesn't know whether it arrived)."""
    IGNORED = "ignored"
    """Nothing was done; `detail` says why."""


class Entry(NamedTuple):
    """One thing that happened at one lock."""

    seq: int  # global, starts at 1, never reused, not even after a clear
    at: float  # epoch seconds
    sn: str
    event: Event
    msg_id: str | None = None
    point: str | None = None
    op: str | None = None
    value: str | None = None
    result: str | None = None
    detail: str | None = None

    def document(self) -> dict[str, Any]:
        """The entry as JSON, `at` in ISO 8601 UTC and `epochMs` as a number."""
        command_id, attempt = split_msg_id(self.msg_id)
        return {
            "seq": self.seq,
            "at": datetime.fromtimestamp(self.at, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
            "epochMs": round(self.at * 1000, 3),
            "sn": self.sn,
            "event": self.event,
            "msgId": self.msg_id,
            "commandId": command_id,
            "attempt": attempt,
            "point": self.point,
            "op": self.op,
            "value": self.value,
            "result": self.result,
            "detail": self.detail,
        }


class Journal:
    """The newest `limit` entries of all locks; older ones are cut and counted in `cut_entries`."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.cut_entries = 0
        self._last_seq = 0
        self._all: deque[Entry] = deque()
        self._by_sn: dict[str, deque[Entry]] = {}

    def __len__(self) -> int:
        return len(self._all)

    @property
    def last_seq(self) -> int:
        """Number of the newest entry there ever was."""
        return self._last_seq

    def add(self, at: float, sn: str, event: Event, **facts: str | None) -> Entry:
        """Write one entry; `facts` are the optional fields of `Entry`."""
        self._last_seq += 1
        entry = Entry(self._last_seq, at, sn, event, **facts)
        self._all.append(entry)
        own = self._by_sn.get(sn)
        if own is None:
            own = self._by_sn[sn] = deque()
        own.append(entry)
        if len(self._all) > self.limit:
            self._cut_oldest()
        return entry

    def of_device(self, sn: str, *, event: Event | None = None, since: int = 0, limit: int) -> list[Entry]:
        """Entries of one lock with a number above `since`, oldest first."""
        return list(islice(_matching(self._by_sn.get(sn, ()), event, since), limit))

    def of_all(self, *, event: Event | None = None, since: int = 0, limit: int) -> list[Entry]:
        """Entries of every lock with a number above `since`, oldest first."""
        # numbers have no gaps between a clear and the next, so the place is known
        skipped = max(0, since + 1 - self._all[0].seq) if self._all else 0
        return list(islice(_matching(islice(self._all, skipped, None), event, since), limit))

    def clear(self) -> None:
        """Forget everything; the numbering goes on."""
        self._all.clear()
        self._by_sn.clear()
        self.cut_entries = 0

    def _cut_oldest(self) -> None:
        oldest = self._all.popleft()
        own = self._by_sn[oldest.sn]
        own.popleft()
        if not own:
            del self._by_sn[oldest.sn]
        self.cut_entries += 1


def _matching(entries: Iterable[Entry], event: Event | None, since: int) -> Iterator[Entry]:
    return (entry for entry in entries if entry.seq > since and (event is None or entry.event is event))
