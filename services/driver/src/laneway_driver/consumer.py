"""What becomes of each message on the command queue: set aside, answered at once, or run."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

import structlog

from laneway_driver.broker_port import Deliverable
from laneway_driver.clock import CenterClock
from laneway_driver.dedup import Attempt, AttemptMemory, Phase
from laneway_driver.executor import Executor
from laneway_driver.results import ResultSender
from laneway_shared import failpoints
from laneway_shared.broker import Outcome, Outgoing, Publishing
from laneway_shared.constraints import violation
from laneway_shared.errors import UnreadableMessageError, cut
from laneway_shared.lifecycle import ResultKind
from laneway_shared.messages import CommandMessage, CommandType, ResultMessage, decode_command
from laneway_shared.topology import Topology

log = structlog.get_logger(__name__)
K = ResultKind
UNCALLED = frozenset({K.NOT_SENT, K.RELEASED, K.EXPIRED})
"""Results that say of an attempt that it didn't call the device."""


class CommandConsumer:
    """Takes deliveries in order, decides about each, and runs up to `capacity` attempts at once."""

    def __init__(
        self,
        *,
        executor: Executor,
        results: ResultSender,
        memory: AttemptMemory,
        clock: CenterClock,
        publisher: Publishing,
        topology: Topology,
        service: str,
        instance: str,
        capacity: int,
    ) -> None:
        self._executor = executor
        self._results = results
        self._memory = memory
        self._clock = clock
        self._publisher = publisher
        self._dead_exchange = topology.dead_exchange
        self._queue = topology.command_queue(service)
        self._instance = instance
        self._slots = asyncio.Semaphore(capacity)
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def in_flight(self) -> int:
        """Attempts in hand."""
        return len(self._memory)

    async def run(self, batches: AsyncIterator[Sequence[Deliverable]]) -> None:
        """Work until cancelled. What is cut off by that is answered with what is known of it."""
        try:
            async with asyncio.TaskGroup() as work:
                async for batch in batches:
                    for delivery in batch:
                        self._results.acks.took(delivery)
                        await self._slots.acquire()
                        if not self._begin(delivery, work):
                            self._slots.release()
        finally:
            for attempt in self._memory.left():  # cancelled before its task had begun
                self._answer_interrupted(attempt)

    def give_back(self, deliveries: Sequence[Deliverable]) -> None:
        """Answer deliveries that came while the process drains. Unreadable ones are left to the next process."""
        for delivery in deliveries:
            self._results.acks.took(delivery)
            with contextlib.suppress(UnreadableMessageError):
                answer = self._answer_at_once(Attempt(decode_command(delivery.body), delivery))
                if answer is not None:
                    self._results.send(answer, delivery)

    async def idle(self) -> None:
        """Wait until no attempt is in hand."""
        await self._empty.wait()

    def _begin(self, delivery: Deliverable, work: asyncio.TaskGroup) -> bool:
        """Decide about a delivery; whether a task has taken it, and a slot with it."""
        if delivery.lost:
            return False
        try:
            command = decode_command(delivery.body)
        except UnreadableMessageError as error:
            work.create_task(self._set_aside(delivery, error.message), name="set aside")
            return True
        failpoints.hit("driver.received")
        if not delivery.redelivered:
            self._clock.learn(command.published_at)
        attempt = Attempt(command, delivery)
        answer = self._answer_at_once(attempt)
        if answer is not None:
            self._results.send(answer, delivery)
            return False
        self._memory.take(attempt)
        self._empty.clear()
        work.create_task(self._run(attempt), name=f"attempt {command.command_id}")
        return True

    def _answer_at_once(self, attempt: Attempt) -> ResultMessage | None:
        """The answer that needs no device, if there is one. The order of these questions matters."""
        command = attempt.command
        if self._memory.in_hand(attempt.id):
            return self._executor.result(command, K.DUPLICATE, error_message="this attempt still runs here")
        known = self._memory.answer(attempt.id)
        if known is not None:
            return known
        answer = self._first_look(command, redelivered=attempt.delivery.redelivered)
        if answer is not None:
            self._memory.keep(attempt.id, answer)
        return answer

    def _first_look(self, command: CommandMessage, *, redelivered: bool) -> ResultMessage | None:
        if redelivered and (command.type is CommandType.WRITE or self._executor.draining):
            return self._redelivered(command)
        if self._executor.draining:
            return self._executor.released(command)
        if command.type is CommandType.WRITE:
            fault = violation(command.payload.value or "", command.target.constraints)
            if fault is not None:
                return self._executor.result(command, K.FAILED, error_code="VALIDATION", error_message=cut(fault))
        return None

    def _redelivered(self, command: CommandMessage) -> ResultMessage:
        why = "another process may be running it, or have run it"
        return self._executor.result(command, K.REDELIVERED, error_message=why)

    async def _run(self, attempt: Attempt) -> None:
        try:
            result = await self._executor.run(attempt)
            if result is not None:
                self._answer(attempt, result)
        except asyncio.CancelledError:
            self._answer_interrupted(attempt)
            raise
        except Exception:
            command = attempt.command
            log.exception("driver.bug", commandId=command.command_id, attempt=command.attempt,
                          tenantId=command.tenant_id, laneKey=command.lane_key)  # fmt: skip
            self._answer(attempt, self._executor.failed(attempt))
        finally:
            self._memory.drop(attempt)
            self._slots.release()
            if not len(self._memory):
                self._empty.set()

    def _answer(self, attempt: Attempt, result: ResultMessage) -> None:
        if attempt.delivery.redelivered and result.status in UNCALLED:
            # a copy (of a read) speaks for itself only: its original may have called the device
            result = self._redelivered(attempt.command)
        self._results.send(result, attempt.delivery)
        self._memory.keep(attempt.id, result)

    def _answer_interrupted(self, attempt: Attempt) -> None:
        if attempt.delivery.lost and attempt.phase is Phase.WAITING:
            self._memory.drop(attempt)
        else:
            self._answer(attempt, self._executor.interrupted(attempt))

    async def _set_aside(self, delivery: Deliverable, reason: str) -> None:
        """Publish a message that can't be read to the dead exchange, as it is, with the reason."""
        log.warning("command.unreadable", reason=reason)
        letter = Outgoing(
            exchange=self._dead_exchange,
            routing_key=delivery.routing_key,
            body=delivery.body,
            headers={
                "x-laneway-reason": cut(reason) or "",
                "x-laneway-queue": self._queue,
                "x-laneway-by": self._instance,
            },
        )
        try:
            [outcome] = await self._publisher.publish([letter])
            if outcome is Outcome.CONFIRMED:
                await delivery.ack()
            else:
                await delivery.reject()  # the broker dead-letters it, without the reason
        finally:
            self._slots.release()
