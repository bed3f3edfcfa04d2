"""Many dead letters, part by part: at a pace, with a bar, and ended by Ctrl-C between two parts."""

import math
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from laneway_center.cli.client import Center
from laneway_center.cli.dead_filter import Filter, State
from laneway_center.cli.output import gathered, progress

MOST = 100  # ids that the center takes at once
BEATS = 5.0  # parts a second, about, when there is a rate


@dataclass
class Tally:
    """What came of it so far. `matched`: how many were meant."""

    matched: int = 0
    done: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)  # by code: the first one refused by it
    warnings: Counter[str] = field(default_factory=Counter)
    results: list[dict[str, Any]] = field(default_factory=list)
    stopped: bool = False

    @property
    def left(self) -> int:
        """How many weren't tried."""
        return self.matched - self.done - self.refused.total()

    def add(self, results: Sequence[dict[str, Any]]) -> None:
        """Count the center's outcomes."""
        for each in results:
            self.results.append(each)
            self.warnings.update(each.get("warnings") or ())
            if each["outcome"] != "refused":
                self.done += 1
                continue
            problem = each["problem"]
            self.refused[problem["code"]] += 1
            self.examples.setdefault(problem["code"], f"{each['id']}: {problem['detail']}")


def open_ids(center: Center, wanted: Filter) -> list[int]:
    """All open entries that are meant, oldest first: so commands of one lane go again in their order."""
    found = gathered("looking", center.pages("/dead-letters", "deadLetters", **wanted.query(State.OPEN)))
    return [int(entry["id"]) for entry in reversed(found)]


def act_on(
    center: Center, what: str, ids: Sequence[int], body: Mapping[str, Any], rate: float | None
) -> Iterator[Tally]:
    """Send the ids part by part; yields the tally after each, so that it is known whatever happens then.

    `rate`: entries a second, None: as fast as it goes. Each part is one transaction of the center, which lets an entry
    go once: whoever stops in the middle and begins again doubles nothing.
    """
    tally = Tally(matched=len(ids))
    size = MOST if rate is None else max(1, min(MOST, math.ceil(rate / BEATS)))
    began = time.monotonic()
    with _stoppable() as stop, progress() as bars:
        bar = bars.add_task(what, total=len(ids))
        for at in range(0, len(ids), size):
            if rate is not None:
                stop.wait(max(0.0, began + at / rate - time.monotonic()))
            if stop.is_set():
                tally.stopped = True
                break
            part = list(ids[at : at + size])
            tally.add(center.post(f"/dead-letters/{what}", {**body, "ids": part})["results"])
            bars.advance(bar, len(part))
            yield tally
    yield tally


@contextmanager
def _stoppable() -> Iterator[threading.Event]:
    """The first Ctrl-C (or SIGTERM) asks for an end, the second one ends."""
    asked = threading.Event()

    def ask(number: int, _frame: object) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, ask)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
