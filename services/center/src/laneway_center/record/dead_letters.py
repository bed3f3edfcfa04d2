"""Dead letters: stored with all they carry, then sent back as LETTER through the result queue."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import structlog
from sqlalchemy.ext.asyncio import AsyncEngine

from laneway_center.store.database import DatabaseAwayError
from laneway_center.store.letters import Letter, store_letters
from laneway_center.traces import note_letters
from laneway_shared import failpoints
from laneway_shared.broker import Consumer, Delivery, Outcome, Outgoing, Publisher, ack_all
from laneway_shared.errors import UnreadableMessageError
from laneway_shared.lifecycle import LETTER_REJECTED, ResultKind
from laneway_shared.messages import CommandMessage, ResultMessage, decode_command, decode_results, encode
from laneway_shared.topology import Topology

log = structlog.get_logger(__name__)

AWAY_PAUSE_S = 0.5
KNOWN_REASONS = ("expired", "rejected", "delivery_limit", "maxlen")


class DeadLetterRecorder:
    """Consumes the dead queue; any number of replicas may."""

    def __init__(self, engine: AsyncEngine, consumer: Consumer, publisher: Publisher, topology: Topology) -> None:
        self._engine, self._consumer, self._publisher, self._topology = engine, consumer, publisher, topology

    async def run(self) -> None:
        """Record until cancelled."""
        async for batch in self._consumer.batches(200):
            await self._record(batch)

    async def _record(self, batch: list[Delivery]) -> None:
        opened = [_Opened(delivery, self._topology) for delivery in batch]
        # Stored before it is sent back, sent back before it is acked: a crash in between only repeats.
        failpoints.hit("letters.received")
        while not batch[-1].lost:
            try:
                await store_letters(self._engine, [each.letter for each in opened])
                failpoints.hit("letters.stored")
                if await self._send_back(opened):
                    break
            except DatabaseAwayError as error:
                log.warning("record.database_away", waiting=len(batch), error=error.message)
            await asyncio.sleep(AWAY_PAUSE_S)
        else:
            return
        note_letters([each.letter for each in opened])
        failpoints.hit("letters.sent_back")
        await ack_all(batch)
        failpoints.hit("letters.acked")

    async def _send_back(self, opened: "Sequence[_Opened]") -> bool:
        letters = [each.way_back for each in opened if isinstance(each.way_back, ResultMessage)]
        bodies = [each.way_back for each in opened if isinstance(each.way_back, bytes)]
        if letters:
            bodies.append(encode(letters))
        if not bodies:
            return True
        key = self._topology.result_key("center")
        outcomes = await self._publisher.publish(
            [Outgoing(exchange=self._topology.result_exchange, routing_key=key, body=body) for body in bodies]
        )
        return all(outcome is Outcome.CONFIRMED for outcome in outcomes)


class _Opened:
    """A letter, and what goes back to the result queue for it: a LETTER, the results it holds, or nothing."""

    def __init__(self, delivery: Delivery, topology: Topology) -> None:
        headers = delivery.headers
        death = _first_death(headers)
        queue = str(death.get("queue") or headers.get("x-laneway-queue") or topology.dead_queue)
        # a driver that can't read a message sends it here itself, with its reason
        said_by_driver = headers.get("x-laneway-reason")
        reason = str(death.get("reason") or (LETTER_REJECTED if said_by_driver else "unreadable"))
        explanation = None if said_by_driver is None else str(said_by_driver)
        command: CommandMessage | None = None
        self.way_back: ResultMessage | bytes | None = None
        if queue == topology.result_queue:
            self.way_back, explanation = _as_results(delivery.body, explanation)
        else:
            command, explanation = _as_command(delivery.body, explanation)
        if command is not None:
            self.way_back = ResultMessage(
                status=ResultKind.LETTER,
                tenant_id=command.tenant_id,
                command_id=command.command_id,
                attempt=command.attempt,
                reason=reason if reason in KNOWN_REASONS else LETTER_REJECTED,
                error_message=explanation,
            )
        listed_as = None if self.way_back is not None else "unreadable"
        self.letter = Letter(
            body=delivery.body,
            queue=queue,
            routing_key=delivery.routing_key,
            reason=reason,
            explanation=explanation,
            tenant_id=None if command is None else command.tenant_id,
            command_id=None if command is None else command.command_id,
            attempt=None if command is None else command.attempt,
            message_id=delivery.message_id,
            headers=headers,
            listed_as=listed_as if command is None else "unknown_command",
            unless_known=command is not None,
            driver=_driver_of(queue, topology),
            device_id=None if command is None else command.payload.device_id,
        )


def _driver_of(queue: str, topology: Topology) -> str | None:
    prefix = topology.command_queue("")
    return queue.removeprefix(prefix) if queue.startswith(prefix) else None


def _as_results(body: bytes, explanation: str | None) -> tuple[bytes | None, str | None]:
    try:
        decode_results(body)
    except UnreadableMessageError as error:
        return None, explanation or error.message
    return body, explanation


def _as_command(body: bytes, explanation: str | None) -> tuple[CommandMessage | None, str | None]:
    try:
        return decode_command(body), explanation
    except UnreadableMessageError as error:
        return None, explanation or error.message


def _first_death(headers: Mapping[str, Any]) -> Mapping[str, Any]:
    deaths = headers.get("x-death")
    if isinstance(deaths, list) and deaths and isinstance(deaths[0], Mapping):
        return deaths[0]
    return {}
