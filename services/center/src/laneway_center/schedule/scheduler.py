"""Deadlines and absence: what nobody answered in time.

Ends nothing that was ever dispatched by itself: it asks, with DUE through the result queue, so that no command
is timed out while its answer waits there. Only what never left is ended here.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta

import structlog
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from laneway_center import metrics
from laneway_center.settings import CenterSettings
from laneway_center.store.claims import hand_on
from laneway_center.store.database import DatabaseAwayError
from laneway_center.store.due import Due, take_due
from laneway_center.store.evidence import Item, JudgeTerms, apply
from laneway_center.store.gauges import read_gauges
from laneway_center.store.instances import forget_instances, sweep_silent
from laneway_center.store.locked_rows import Subject
from laneway_center.traces import note_changes
from laneway_center.wakeups import Wakeups
from laneway_shared import failpoints
from laneway_shared.broker import Outcome, Outgoing, Publisher
from laneway_shared.judgement import Evidence
from laneway_shared.lifecycle import ResultKind
from laneway_shared.messages import ResultMessage, encode
from laneway_shared.topology import Topology

log = structlog.get_logger(__name__)

BATCH = 500
SWEEP_EVERY_S = 1.0
REFUSED_PAUSE_S = 1.0
SAMPLE_EVERY_S = 5.0


class Scheduler:
    """One scheduler; any number may run."""

    def __init__(
        self,
        engine: AsyncEngine,
        publisher: Publisher,
        topology: Topology,
        settings: CenterSettings,
        terms: JudgeTerms,
        wakeups: Wakeups,
    ) -> None:
        self._engine, self._publisher, self._topology = engine, publisher, topology
        self._settings, self._terms, self._wakeups = settings, terms, wakeups

    async def run(self) -> None:
        """Schedule until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._repeat(self._look_after_due, self._settings.schedule_poll_s), name="due")
            tasks.create_task(self._repeat(self._sweep, SWEEP_EVERY_S), name="sweep instances")
            tasks.create_task(self._repeat(self._hand_on, SWEEP_EVERY_S), name="hand on lanes")
            tasks.create_task(self._repeat(self._sample, SAMPLE_EVERY_S), name="sample gauges")

    async def _repeat(self, work: Callable[[], Awaitable[bool]], pause_s: float) -> None:
        while True:
            try:
                more = await work()
            except DatabaseAwayError as error:
                log.warning("schedule.database_away", error=error.message)
                more = False
            except DBAPIError:
                log.exception("schedule.refused")  # a bug; the other works go on, this one is tried again
                await asyncio.sleep(REFUSED_PAUSE_S)
                more = False
            if not more:
                await asyncio.sleep(pause_s)

    async def _look_after_due(self) -> bool:
        due = await take_due(self._engine, most=BATCH)
        if due:
            failpoints.hit("schedule.taken")
        asked = [each for each in due if each.attempt > 0]
        unsent = [each for each in due if each.attempt == 0]
        if unsent:
            await self._expire(unsent)
        if asked:
            await self._ask(asked)
        return len(due) == BATCH

    async def _ask(self, due: Sequence[Due]) -> None:
        questions = [
            ResultMessage(
                status=ResultKind.DUE,
                tenant_id=each.tenant_id,
                command_id=each.command_id,
                attempt=each.attempt,
                finished_at=each.seen_at,
                instance=self._settings.instance,
            )
            for each in due
        ]
        outgoing = Outgoing(
            exchange=self._topology.result_exchange,
            routing_key=self._topology.result_key("center"),
            body=encode(questions),
        )
        outcomes = await self._publisher.publish([outgoing])
        if outcomes[0] is not Outcome.CONFIRMED:  # asked again in a while
            log.warning("schedule.unasked", count=len(due), outcome=outcomes[0].value)
            return
        metrics.ASKED.inc(len(due))
        failpoints.hit("schedule.asked")

    async def _expire(self, due: Sequence[Due]) -> None:
        items = [
            Item(
                subject=Subject(tenant_id=each.tenant_id, command_id=each.command_id),
                evidence=Evidence(kind=ResultKind.DUE, attempt=0, at=each.seen_at),
            )
            for each in due
        ]
        applied = await apply(self._engine, items, self._terms)
        failpoints.hit("schedule.expired")
        note_changes(applied.changes)
        if applied.ready or applied.ready is None:
            self._wakeups.lanes_ready(applied.ready)
        self._wakeups.commands_moved(change.command_id for change in applied.changes)

    async def _hand_on(self) -> bool:
        await hand_on(self._engine, self._settings.ageing_s)
        return False

    async def _sweep(self) -> bool:
        silence = timedelta(seconds=self._settings.offline_after_s)
        for service, instance in await sweep_silent(self._engine, silence):
            metrics.INSTANCES_LOST.inc()
            log.warning("instance.offline", service=service, instance=instance, silentFor=silence.total_seconds())
        await forget_instances(self._engine)
        return False

    async def _sample(self) -> bool:
        readings = await read_gauges(self._engine)
        waiting, closed = Counter[str](), Counter[str]()
        for row in readings.lanes:
            waiting[row["driver"]] += row["waiting"]
            closed[row["driver"]] += row["closed"]
        metrics.show(metrics.QUEUE_DEPTH, (((driver,), depth) for driver, depth in waiting.items()))
        metrics.GLOBAL_DEPTH.set(sum(waiting.values()))
        metrics.show(metrics.CLOSED, (((driver,), lanes) for driver, lanes in closed.items()))
        metrics.show(metrics.LANES, (((row["driver"], row["state"]), row["lanes"]) for row in readings.lanes))
        ready = [row for row in readings.lanes if row["state"] == "ready"]
        metrics.show(metrics.BLOCKED, (((row["driver"],), row["blocked_s"]) for row in ready))
        metrics.show(metrics.IN_FLIGHT, (((row["driver"],), row["in_flight"]) for row in readings.in_flight))
        metrics.show(metrics.OLDEST_IN_FLIGHT, (((row["driver"],), row["oldest_s"]) for row in readings.in_flight))
        metrics.REVIEWS.set(readings.reviews)
        metrics.DEAD_ENDS.set(readings.dead_ends)
        metrics.OLDEST_FINAL.set(readings.oldest_final_s)
        who = [((row["service"], row["kind"]), row) for row in readings.instances]
        metrics.show(metrics.INSTANCES, ((labels, row["online"]) for labels, row in who))
        metrics.show(
            metrics.CLOCK_OFFSET,
            ((labels, row["clock_offset_s"]) for labels, row in who if row["clock_offset_s"] is not None),
        )
        return False
