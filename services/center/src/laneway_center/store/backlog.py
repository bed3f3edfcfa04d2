"""How many commands wait for a driver service, and in all: the bounds that no single lane knows.

A sum over all lanes is too dear for every submit. So it is sampled, and counted exactly, one submit at a time, once
a bound is near: near enough to leave room for all that several centers may accept meanwhile.
"""

import time
from collections import Counter
from collections.abc import Sequence
from http import HTTPStatus

from sqlalchemy.ext.asyncio import AsyncConnection

from laneway_center.store.enqueue import Key, NewCommand
from laneway_center.store.statements import SQL
from laneway_shared.problems import ProblemError

SAMPLE_S = 1.0
NEAR_SHARE, NEAR_LEAST = 0.2, 5000  # of a bound, and commands: closer than the larger of them, it is counted
RETRY_AFTER_S = 5
ALL = ""  # no driver service is called so


class Backlog:
    """What waits, as one process knows it."""

    def __init__(self, limit: int) -> None:
        self._limit = limit  # of all driver services together
        self._waiting: Counter[str] = Counter()
        self._sampled_at: float | None = None

    async def refuse(self, connection: AsyncConnection, commands: Sequence[NewCommand]) -> dict[Key, ProblemError]:
        """Which of these commands find no room, by driver service or in all."""
        if self._sampled_at is None or time.monotonic() - self._sampled_at > SAMPLE_S:
            await self._count(connection)
        coming = Counter(command.driver for command in commands) + Counter({ALL: len(commands)})
        limits = {command.driver: command.waiting_limit for command in commands} | {ALL: self._limit}
        if all(self._waiting[name] + coming[name] < limit - _margin(limit) for name, limit in limits.items()):
            self._waiting += coming
            return {}
        await connection.execute(SQL["lock_waiting"])  # until the end of the transaction
        await self._count(connection)
        refused: dict[Key, ProblemError] = {}
        for command in commands:
            full = next((name for name in (command.driver, ALL) if self._waiting[name] >= limits[name]), None)
            if full is None:
                self._waiting += Counter({command.driver: 1, ALL: 1})
            else:
                refused[command.key] = backlog_full(full, limits[full])
        return refused

    async def _count(self, connection: AsyncConnection) -> None:
        self._sampled_at = time.monotonic()
        found = await connection.execute(SQL["count_waiting"])
        self._waiting = Counter({row.driver: row.waiting for row in found})
        self._waiting[ALL] = self._waiting.total()


def _margin(limit: int) -> float:
    return max(NEAR_SHARE * limit, NEAR_LEAST)


def backlog_full(driver: str, limit: int) -> ProblemError:
    """Too many commands wait; `driver` ALL: for all driver services together."""
    where = f"for driver {driver}" if driver else "in all lanes together"
    return ProblemError(
        HTTPStatus.TOO_MANY_REQUESTS,
        "BACKLOG_FULL",
        f"{limit} commands are waiting {where}, which is the bound; try again later",
        headers={"Retry-After": str(RETRY_AFTER_S)},
    )
