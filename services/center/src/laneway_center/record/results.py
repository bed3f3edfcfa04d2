"""The one road back: applies what comes through the result queue, in its order, in batches."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import structlog
from sqlalchemy.ext.asyncio import AsyncEngine

from laneway_center.store.database import DatabaseAwayError, is_refused_value
from laneway_center.store.evidence import Applied, Item, JudgeTerms, apply
from laneway_center.store.letters import Letter, store_letters
from laneway_center.store.locked_rows import Subject, TransitionRefusedError
from laneway_center.traces import note_changes, note_evidence, note_letters
from laneway_center.wakeups import Wakeups
from laneway_shared import failpoints
from laneway_shared.broker import Consumer, Delivery, ack_all
from laneway_shared.errors import UnreadableMessageError
from laneway_shared.judgement import Evidence
from laneway_shared.lifecycle import FINAL, ResultKind
from laneway_shared.messages import ResultMessage, decode_results

log = structlog.get_logger(__name__)

AWAY_FIRST_S, AWAY_MOST_S = 0.2, 2.0
RESULTS_MOST = 2000  # results applied in one transaction
LONGEST_ACK_TIMEOUT_S = 86_400.0
_ECHOES = (ResultKind.LETTER, ResultKind.DUE)  # our own words: the letter itself is stored, a question is no message


@dataclass(frozen=True)
class _Parsed:
    """One result, or why its message can't be read, with the message it came in."""

    delivery: Delivery
    result: ResultMessage | None
    fault: str | None = None


class ResultRecorder:
    """Consumes the result queue. One replica is active at a time (single active consumer)."""

    def __init__(
        self, engine: AsyncEngine, consumer: Consumer, queue: str, terms: JudgeTerms, wakeups: Wakeups, most: int
    ) -> None:
        self._engine, self._consumer, self._queue = engine, consumer, queue
        self._terms, self._wakeups, self._most = terms, wakeups, most

    async def run(self) -> None:
        """Record until cancelled."""
        async for batch in self._consumer.batches(self._most):
            await self._record(batch)

    async def _record(self, batch: list[Delivery]) -> None:
        parsed = [each for delivery in batch for each in _parse(delivery)]
        failpoints.hit("record.received")
        pause = AWAY_FIRST_S
        while not batch[-1].lost:  # a lost batch comes again
            try:
                while parsed:  # a part that was applied is not applied again
                    await self._apply(parsed[:RESULTS_MOST])
                    del parsed[:RESULTS_MOST]
                break
            except DatabaseAwayError as error:
                log.warning("record.database_away", waiting=len(batch), error=error.message)
            await asyncio.sleep(pause)
            pause = min(pause * 2, AWAY_MOST_S)
        failpoints.hit("record.applied")
        await ack_all(batch)
        failpoints.hit("record.acked")

    async def _apply(self, parsed: Sequence[_Parsed]) -> None:
        faults = [self._letter(each, "unreadable", each.fault) for each in parsed if each.result is None]
        readable = [each for each in parsed if each.result is not None]
        faults += await self._apply_readable(readable)
        if faults:
            await store_letters(self._engine, faults)
            note_letters(faults)

    async def _apply_readable(self, readable: Sequence[_Parsed]) -> list[Letter]:
        """Apply; a batch refused for one row's sake is split until the row is alone."""
        if not readable:
            return []
        try:
            applied = await apply(self._engine, [item_of(each.result) for each in readable if each.result], self._terms)
        except DatabaseAwayError:
            raise
        except Exception as error:
            if not (is_refused_value(error) or isinstance(error, TransitionRefusedError)):
                raise
            if len(readable) == 1:
                log.exception("record.refused")
                if isinstance(error, TransitionRefusedError):
                    return [self._letter(readable[0], "refused_transition", str(error))]
                return [self._letter(readable[0], "refused_value", "the database refused a value in it")]
            half = len(readable) // 2
            return await self._apply_readable(readable[:half]) + await self._apply_readable(readable[half:])
        self._note(readable, applied)
        return [
            self._letter(
                readable[n],
                "unknown_command",
                "no command of this id is known, or not this device's, or not one alone awaits an answer",
            )
            for n in applied.orphans
        ]

    def _letter(self, parsed: _Parsed, reason: str, explanation: str | None) -> Letter:
        result, delivery = parsed.result, parsed.delivery
        return Letter(
            body=delivery.body,
            queue=self._queue,
            routing_key=delivery.routing_key,
            reason=reason,
            explanation=explanation,
            tenant_id=None if result is None else result.tenant_id,
            command_id=None if result is None else result.command_id,
            attempt=None if result is None else result.attempt,
            message_id=delivery.message_id,
            headers=delivery.headers,
            listed_as=None if result is not None and result.status in _ECHOES else reason,
        )

    def _note(self, readable: Sequence[_Parsed], applied: Applied) -> None:
        note_evidence([each.result for each in readable if each.result])
        note_changes(applied.changes)
        if applied.ready or applied.ready is None:
            self._wakeups.lanes_ready(applied.ready)
        # a device that names no command is only known by the change it made; a line of it that changed nothing waits
        # for the next look
        moved = {each.result.command_id for each in readable if each.result}
        moved |= {change.command_id for change in applied.changes}
        ended = {change.command_id for change in applied.changes if change.after in FINAL}
        self._wakeups.commands_moved(ended)
        self._wakeups.commands_moved(moved - ended, going_on=True)


def _parse(delivery: Delivery) -> list[_Parsed]:
    try:
        results = decode_results(delivery.body)
    except UnreadableMessageError as error:
        return [_Parsed(delivery, None, error.message)]
    return [
        _Parsed(delivery, None, each.message) if isinstance(each, UnreadableMessageError) else _Parsed(delivery, each)
        for each in results
    ]


def item_of(result: ResultMessage) -> Item:
    """A result message as evidence."""
    detail: dict[str, Any] = {
        "instance": result.instance,
        "deviceSn": result.device_sn,
        "responseValue": result.response_value,
        "errorCode": result.error_code,
        "errorMessage": result.error_message,
        "operation": result.operation,
        "matchedBy": result.matched_by,
        "reason": result.reason,
    }
    timeout = result.ack_timeout
    usable = timeout is not None and 0 < timeout <= LONGEST_ACK_TIMEOUT_S
    return Item(
        subject=Subject(
            tenant_id=result.tenant_id,
            command_id=result.command_id,
            device_sn=result.device_sn,
            said_at=result.finished_at,
        ),
        evidence=Evidence(
            kind=result.status,
            attempt=result.attempt,
            at=result.finished_at,
            retryable=result.retryable,
            response_value=result.response_value,
            error_code=result.error_code,
            error_message=result.error_message,
            ack_timeout=timedelta(seconds=timeout) if usable and timeout is not None else None,
            reason=result.reason,
        ),
        detail=detail,
    )
