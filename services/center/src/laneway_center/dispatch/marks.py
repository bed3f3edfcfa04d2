"""Marking as SENT what the broker has confirmed and nobody has answered yet."""

import asyncio
import contextlib
from collections.abc import Sequence

import structlog
from sqlalchemy import RowMapping
from sqlalchemy.ext.asyncio import AsyncEngine

from laneway_center.store.claims import confirm_sent
from laneway_center.store.database import DatabaseAwayError
from laneway_center.wakeups import Wakeups
from laneway_shared import failpoints

log = structlog.get_logger(__name__)


class SentMarks:
    """Waits a moment: most results are here sooner, and a mark costs as much as applying one."""

    def __init__(self, engine: AsyncEngine, wakeups: Wakeups, after_s: float) -> None:
        self._engine, self._wakeups, self._after_s = engine, wakeups, after_s
        self._fresh: list[RowMapping] = []  # attempts confirmed since the last look
        self._due: list[RowMapping] = []  # those of the look before, not marked yet
        self._some = asyncio.Event()
        self._stopping = asyncio.Event()

    def add(self, confirmed: Sequence[RowMapping]) -> None:
        """Claimed rows to be marked between `after_s` and twice that from now, where no result was faster."""
        self._fresh += confirmed
        if self._fresh:
            self._some.set()

    def stop(self) -> None:
        """Mark all at once; `run` ends."""
        self._stopping.set()
        self._some.set()

    async def run(self) -> None:
        """Mark until stopped."""
        while not self._stopping.is_set():
            await self._some.wait()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._after_s):
                    await self._stopping.wait()
            await self._mark(self._due)
            self._due, self._fresh = self._fresh, []
            if not self._due:
                self._some.clear()
        await self._mark(self._due + self._fresh)

    async def _mark(self, confirmed: Sequence[RowMapping]) -> None:
        if not confirmed:
            return
        try:
            await confirm_sent(self._engine, [(row["id"], row["attempt"]) for row in confirmed])
        except DatabaseAwayError as error:
            # the mark is for people: results and the bound move a DISPATCHING command on just as well
            log.warning("dispatch.sent_unmarked", count=len(confirmed), error=error.message)
        failpoints.hit("dispatch.marked")
        self._wakeups.commands_moved((row["command_id"] for row in confirmed), going_on=True)
