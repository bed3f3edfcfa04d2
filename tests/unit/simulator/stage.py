"""Locks on a virtual clock, with a list in place of the broker."""

import asyncio
import heapq
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from laneway_simulator.faults import FaultPlan
from laneway_simulator.fleet import AnswerLostError, Fleet
from laneway_simulator.journal import Event, Journal

COMMAND = "0190c3e2-0000-7000-8000-000000000001"
_TURNS = 20  # of the event loop: more than any chain of callbacks here is long


class VirtualClock:
    """Time that passes only when nothing else is left to do."""

    def __init__(self) -> None:
        self.time = 1_000.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._count = 0

    def now(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        future = asyncio.get_running_loop().create_future()
        self._count += 1
        heapq.heappush(self._sleepers, (self.time + seconds, self._count, future))
        await future

    async def settle(self) -> None:
        """Let everything run that needs no time."""
        for _ in range(_TURNS):
            await asyncio.sleep(0)

    async def run_dry(self) -> None:
        """Let everything run to its end."""
        await self.settle()
        while self._sleepers:
            self.time, _, future = heapq.heappop(self._sleepers)
            if not future.done():
                future.set_result(None)
            await self.settle()


class Stage:
    """One fleet and what its locks said."""

    def __init__(self, tasks: asyncio.TaskGroup, plan: FaultPlan, journal_limit: int, device_limit: int) -> None:
        self.clock = VirtualClock()
        self.answers: list[tuple[float, str, Any]] = []
        self.broker_is_away = False
        self.fleet = Fleet(
            plan=plan,
            journal=Journal(journal_limit),
            clock=self.clock,
            send=self._send,
            tasks=tasks,
            device_limit=device_limit,
        )

    async def _send(self, sn: str, payload: bytes) -> None:
        if self.broker_is_away:
            raise AnswerLostError("away")
        self.answers.append((self.clock.time, sn, json.loads(payload)))

    def tell(self, sn: str, attempt: int = 1, **changes: Any) -> None:
        """A command reaches the lock; by default `write lock 1`."""
        command = {"msgId": f"{COMMAND}.{attempt}", "cmd": "lock", "op": "write", "value": "1", "validUntil": None}
        self.fleet.receive(sn, json.dumps(command | changes).encode())

    def events(self, sn: str) -> list[tuple[Event, str | None]]:
        """(event, detail) of a lock's journal."""
        return [(entry.event, entry.detail) for entry in self.fleet.journal.of_device(sn, limit=1_000)]

    def results(self) -> list[str]:
        return [answer["result"] for _, _, answer in self.answers]


@asynccontextmanager
async def stage(
    plan: FaultPlan | None = None, *, journal_limit: int = 10_000, device_limit: int = 100
) -> AsyncIterator[Stage]:
    async with asyncio.TaskGroup() as tasks:
        made = Stage(tasks, plan or FaultPlan(latency_min_ms=100, latency_max_ms=100), journal_limit, device_limit)
        yield made
        made.fleet.stop()
