"""Retention: commands that have ended leave the hot tables after a while, and the history after another.

Any number may run; one at a time works. It moves small batches and rests as long as each took, so that those who send
commands always find room.
"""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import structlog
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from laneway_center import metrics
from laneway_center.settings import CenterSettings
from laneway_center.store.database import DatabaseAwayError
from laneway_center.store.history import BEGINNING, ArchiveTerms, archive, drop_letters
from laneway_center.store.partitions import drop_partitions, make_partitions
from laneway_shared import failpoints

log = structlog.get_logger(__name__)


class Archiver:
    """One archiver."""

    def __init__(self, engine: AsyncEngine, settings: CenterSettings) -> None:
        self._engine = engine
        self._retention = timedelta(seconds=settings.history_retention_s)
        self._letter_retention = timedelta(seconds=settings.letter_retention_s)
        self._terms = ArchiveTerms(
            hot=timedelta(seconds=settings.hot_window_s), retention=self._retention, most=settings.archive_batch
        )
        self._poll_s = settings.archive_poll_s

    async def run(self) -> None:
        """Archive until cancelled."""
        while True:
            await self.round()
            await asyncio.sleep(self._poll_s)

    async def round(self) -> None:
        """Everything that is to be done now. What can't be done is done in the next round."""
        for work in (self._make_partitions, self._archive, self._drop_partitions, self._drop_letters):
            await self._try(work)

    async def _try(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except DatabaseAwayError as error:
            log.warning("archive.database_away", error=error.message)
        except DBAPIError:
            log.exception("archive.refused")  # a bug; the other works go on, this one is tried again

    async def _make_partitions(self) -> None:
        made = await make_partitions(self._engine, self._retention)
        if made:
            log.info("archive.partitions_made", partitions=made)

    async def _archive(self) -> None:
        after, more = BEGINNING, True
        while more:
            began = asyncio.get_running_loop().time()
            batch = await archive(self._engine, self._terms, after=after)
            if batch.moved:
                failpoints.hit("schedule.archived")
            metrics.ARCHIVED.inc(batch.moved)
            after, more = batch.up_to, batch.more
            await asyncio.sleep(asyncio.get_running_loop().time() - began)

    async def _drop_partitions(self) -> None:
        dropped = await drop_partitions(self._engine, self._retention)
        metrics.PARTITIONS_DROPPED.inc(len(dropped.names))
        if dropped.names:
            log.info("archive.partitions_dropped", partitions=dropped.names)
        if dropped.busy:
            log.info("archive.partitions_busy")  # somebody still reads a day that is to go

    async def _drop_letters(self) -> None:
        dropped = self._terms.most
        while dropped == self._terms.most:
            dropped = await drop_letters(self._engine, self._letter_retention, most=self._terms.most)
