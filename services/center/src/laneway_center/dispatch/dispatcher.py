"""Sends the heads of free lanes: claim in a batch, publish with confirms, mark what was confirmed."""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import structlog
from sqlalchemy import RowMapping
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from laneway_center import metrics
from laneway_center.dispatch.marks import SentMarks
from laneway_center.intake import constraints_of
from laneway_center.settings import CenterSettings
from laneway_center.store.claims import ClaimTerms, LiveServices, claim, live_services
from laneway_center.store.database import DatabaseAwayError
from laneway_center.wakeups import Wakeups
from laneway_shared import failpoints
from laneway_shared.broker import Outcome, Outgoing, Publisher
from laneway_shared.lifecycle import ResultKind
from laneway_shared.messages import CommandMessage, CommandType, Payload, ResultMessage, Target, encode
from laneway_shared.telemetry import log_each
from laneway_shared.topology import Topology

log = structlog.get_logger(__name__)

LIVE_FOR_S = 0.25  # how long a look at the live services counts
BATCHES_AT_ONCE = 4  # claimed batches waiting for confirms
LEAST_WINDOW_S = 0.05  # with less of its start window left an attempt isn't published any more
AWAY_PAUSE_S = 0.5
REFUSED_PAUSE_S = 1.0


class Dispatcher:
    """One dispatcher; any number may run, row locks divide the work."""

    def __init__(
        self,
        engine: AsyncEngine,
        publisher: Publisher,
        topology: Topology,
        settings: CenterSettings,
        wakeups: Wakeups,
    ) -> None:
        self._engine = engine
        self._publisher = publisher
        self._topology = topology
        self._settings = settings
        self._wakeups = wakeups
        self._slots = asyncio.Semaphore(BATCHES_AT_ONCE)
        self._marks = SentMarks(engine, wakeups, settings.mark_sent_after_s)
        self._live = LiveServices(capacity={}, ready=frozenset(), profiles=())
        self._live_until = 0.0
        self._wanted: frozenset[str] | None = None  # driver services to look at next; None: whichever has something
        self._all_looked_at = 0.0
        self._stopping = False
        self._terms = ClaimTerms(
            by=settings.instance,
            window_ms=round(settings.start_window_s * 1000),
            grace_ms=round(settings.grace_s * 1000),
            most=settings.claim_batch,
            ageing_s=settings.ageing_s,
        )

    def stop(self) -> None:
        """Claim no more; `run` ends when what is claimed has been published and marked."""
        self._stopping = True
        self._wakeups.lanes_ready()

    async def run(self) -> None:
        """Dispatch until stopped."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._marks.run(), name="mark SENT")
            async with asyncio.TaskGroup() as sending:
                while not self._stopping:
                    await self._look(sending)
            self._marks.stop()

    async def _look(self, sending: asyncio.TaskGroup) -> None:
        """Send what is ready, and wait where nothing is."""
        wanted, self._wanted = self._wanted, None
        try:
            more = await self._round(sending, wanted)
        except DatabaseAwayError as error:
            log.warning("dispatch.database_away", error=error.message)
            await asyncio.sleep(AWAY_PAUSE_S)
        except DBAPIError:
            log.exception("dispatch.refused")  # a bug; what can be sent is sent, this is tried again
            await asyncio.sleep(REFUSED_PAUSE_S)
        else:
            all_due = self._all_looked_at + self._settings.dispatch_poll_s
            woken = self._wakeups.woken() if more else await self._wakeups.wait(max(all_due - time.monotonic(), 0))
            # lanes become ready by the passing of time as well, and a wake-up may be lost
            if woken is not None and time.monotonic() < all_due:
                self._wanted = woken | more

    async def _round(self, sending: asyncio.TaskGroup, wanted: frozenset[str] | None) -> frozenset[str]:
        """Claim once at each of these driver services; returns those that may have more right now."""
        if not self._publisher.connected or self._publisher.blocked:
            self._all_looked_at = time.monotonic()  # as far as that is possible
            return frozenset()
        live = await self._live_services(anew=wanted is None)
        more: set[str] = set()
        for driver in (live.ready if wanted is None else wanted) & live.capacity.keys():
            await self._slots.acquire()
            room = round(live.capacity[driver] * (1 + self._settings.capacity_lead))
            taken = time.monotonic()
            try:
                claimed = await claim(self._engine, driver, room=room, profiles=live.profiles, terms=self._terms)
            except BaseException:
                self._slots.release()
                raise
            if claimed.looked >= self._settings.claim_batch:
                more.add(driver)
            more |= claimed.handed_to
            if not claimed:
                self._slots.release()
                continue
            failpoints.hit("dispatch.claimed")
            self._note_claimed(driver, claimed)
            self._wakeups.commands_moved((row["command_id"] for row in claimed), going_on=True)
            sending.create_task(self._send(driver, claimed, taken), name=f"send to {driver}")
        return frozenset(more)

    async def _live_services(self, *, anew: bool) -> LiveServices:
        began = time.monotonic()
        if anew or began >= self._live_until:
            self._live = await live_services(self._engine)
            self._live_until = began + LIVE_FOR_S
        if anew:
            self._all_looked_at = time.monotonic()
        return self._live

    @staticmethod
    def _note_claimed(driver: str, claimed: Sequence[RowMapping]) -> None:
        metrics.CLAIMED.labels(driver).inc(len(claimed))
        for row in claimed:
            if row["attempt"] == 1:
                metrics.TIME_IN_QUEUE.observe((row["published_at"] - row["create_time"]).total_seconds())
        log_each([{"event": "claim", **_who(row), "laneToken": row["lane_token"]} for row in claimed])

    async def _send(self, driver: str, claimed: Sequence[RowMapping], taken: float) -> None:
        try:
            await self._publish(driver, claimed, taken)
        finally:
            self._slots.release()

    async def _publish(self, driver: str, claimed: Sequence[RowMapping], taken: float) -> None:
        # An attempt is published at most once, and only while its start window lasts: whatever stopped this
        # process since the claim must not send an old command on its way.
        waited = time.monotonic() - taken
        live: list[RowMapping] = []
        late: list[RowMapping] = []
        messages: list[Outgoing] = []
        for row in claimed:
            left = (row["start_by"] - row["published_at"]).total_seconds() - waited
            if left > LEAST_WINDOW_S:
                live.append(row)
                messages.append(self._message(driver, row, left))
            else:
                late.append(row)
        failpoints.hit("dispatch.publishing")
        outcomes = await self._publisher.publish(messages, timeout_s=self._settings.confirm_timeout_s)
        failpoints.hit("dispatch.confirmed")
        confirmed = [row for row, outcome in zip(live, outcomes, strict=True) if outcome is Outcome.CONFIRMED]
        metrics.LATE_CLAIMS.inc(len(late))
        self._note_published(live, outcomes, time.monotonic() - taken)
        self._marks.add(confirmed)
        unsent = [(row, _LATE) for row in late]
        unsent += [(row, _UNSENT[outcome]) for row, outcome in zip(live, outcomes, strict=True) if outcome in _UNSENT]
        if unsent:
            await self._report_unsent(driver, unsent)

    @staticmethod
    def _note_published(live: Sequence[RowMapping], outcomes: Sequence[Outcome], took_s: float) -> None:
        for outcome, count in Counter(outcomes).items():
            metrics.PUBLISHED.labels(outcome.value).inc(count)
        for _ in range(outcomes.count(Outcome.CONFIRMED)):
            metrics.DISPATCH_LATENCY.observe(took_s)
        log_each(
            [
                {"event": "publish", **_who(row), "outcome": outcome.value}
                for row, outcome in zip(live, outcomes, strict=True)
            ]
        )

    async def _report_unsent(self, driver: str, unsent: Sequence[tuple[RowMapping, "_Unsent"]]) -> None:
        """What certainly never reached a queue may go again; the way back is the same as for all evidence."""
        results = [
            ResultMessage(
                status=why.kind,
                tenant_id=row["tenant_id"],
                command_id=row["command_id"],
                attempt=row["attempt"],
                error_code=why.code,
                error_message=why.message,
                instance=self._settings.instance,
                finished_at=datetime.now(UTC),
            )
            for row, why in unsent
        ]
        outgoing = Outgoing(
            exchange=self._topology.result_exchange,
            routing_key=self._topology.result_key("center"),
            body=encode(results),
        )
        # if this fails too, the bound of the attempt decides
        outcomes = await self._publisher.publish([outgoing], timeout_s=self._settings.confirm_timeout_s)
        log.warning("dispatch.unsent", driver=driver, count=len(unsent), reported=outcomes[0].value)

    def _message(self, driver: str, row: RowMapping, left_s: float) -> Outgoing:
        return Outgoing(
            exchange=self._topology.command_exchange,
            routing_key=self._topology.command_key(driver),
            body=encode(command_message(row)),
            correlation_id=row["command_id"],
            ttl_ms=max(int(left_s * 1000), 1),
        )


def _who(row: RowMapping) -> dict[str, Any]:
    """What log lines say of an attempt."""
    return {
        "commandId": row["command_id"],
        "attempt": row["attempt"],
        "tenantId": row["tenant_id"],
        "laneKey": row["lane_key"],
        "intentKey": row["intent_key"],
    }


@dataclass(frozen=True)
class _Unsent:
    """Why an attempt certainly reached no queue."""

    kind: ResultKind
    code: str
    message: str


# our own trouble costs the command no attempt
_LATE = _Unsent(ResultKind.EXPIRED, "START_WINDOW", "the start window passed before it was published")
_UNSENT = {
    Outcome.NOT_SENT: _Unsent(ResultKind.RELEASED, "BROKER_AWAY", "RabbitMQ was away"),
    Outcome.UNROUTABLE: _Unsent(ResultKind.NOT_SENT, "NO_QUEUE", "no queue takes commands for this driver service"),
}


def command_message(row: RowMapping) -> CommandMessage:
    """The message of a claimed attempt."""
    return CommandMessage(
        command_id=row["command_id"],
        attempt=row["attempt"],
        tenant_id=row["tenant_id"],
        type=CommandType(row["type"]),
        payload=Payload(
            kind=str(row["type"]).capitalize(),
            device_id=row["device_id"],
            point_id=row["point_id"],
            value=row["request_value"],
        ),
        target=Target(
            device_sn=row["device_sn"],
            point=row["point"],
            profile=row["profile"],
            address=row["address"],
            constraints=constraints_of(row),
        ),
        retry_safety=row["retry_safety"],
        gate=row["gate"],
        lane_key=row["lane_key"],
        lane_token=row["lane_token"],
        source=row["source"],
        source_user_id=row["source_user_id"],
        occurred_at=row["occurred_at"],
        expire_at=row["expire_at"],
        published_at=row["published_at"],
        start_by=row["start_by"],
        call_timeout=row["call_timeout_ms"] / 1000,
    )
