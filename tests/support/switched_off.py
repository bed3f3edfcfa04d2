"""The safeguards, each switched off by replacing just its rule, in the process of a test."""

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest
from msgspec import structs
from sqlalchemy import text

from laneway_center.record.dead_letters import DeadLetterRecorder
from laneway_center.record.results import item_of
from laneway_center.schedule.scheduler import Scheduler
from laneway_center.store import claims
from laneway_center.store.due import Due
from laneway_center.store.evidence import Item, apply
from laneway_center.store.locked_rows import Subject
from laneway_center.store.statements import SQL
from laneway_driver.clock import CenterClock
from laneway_driver.consumer import CommandConsumer
from laneway_driver.executor import Executor
from laneway_driver.locks import LaneTokens
from laneway_shared import judgement
from laneway_shared.judgement import Evidence
from laneway_shared.lifecycle import TRANSITIONS, ResultKind, Status
from laneway_shared.messages import CommandMessage, ResultMessage
from support.interleaving import IN_FLIGHT_INDEX, Stage
from support.stored import run

S, K = Status, ResultKind
Switch = Callable[[pytest.MonkeyPatch, Stage], Awaitable[None]]


async def confirms_move_anything(patch: pytest.MonkeyPatch, _: Stage) -> None:
    patch.setattr(claims, "sources", lambda target: list(S) if target is S.SENT else [S.PENDING, S.RETRY_WAIT])


async def final_states_change(patch: pytest.MonkeyPatch, _: Stage) -> None:
    patch.setattr(judgement, "FINAL", frozenset())
    for status in (S.DEAD, S.TIMEOUT, S.EXPIRED, S.FAILED):
        patch.setitem(cast("dict[Status, frozenset[Status]]", TRANSITIONS), status, frozenset({S.SUCCESS, S.FAILED}))


async def no_row_locks(patch: pytest.MonkeyPatch, _: Stage) -> None:
    for name, statement in list(SQL.items()):
        unlocked = re.sub(r"FOR UPDATE( OF \w+)?( SKIP LOCKED)?", "", statement.text)
        patch.setitem(SQL, name, text(unlocked))
    patch.setitem(SQL, "lock_room", text("SELECT CAST(:driver AS text)"))


async def no_index(_: pytest.MonkeyPatch, stage: Stage) -> None:
    await run(stage.engine, f"DROP INDEX {IN_FLIGHT_INDEX}")


async def neither_locks_nor_index(patch: pytest.MonkeyPatch, stage: Stage) -> None:
    await no_row_locks(patch, stage)
    await no_index(patch, stage)


async def copies_are_run(patch: pytest.MonkeyPatch, _: Stage) -> None:
    first_look = CommandConsumer._first_look

    def trusting(self: CommandConsumer, command: CommandMessage, *, redelivered: bool) -> ResultMessage | None:
        del redelivered
        return first_look(self, command, redelivered=False)

    patch.setattr(CommandConsumer, "_first_look", trusting)


async def no_start_window(patch: pytest.MonkeyPatch, _: Stage) -> None:
    patch.setattr(Executor, "_late", lambda *_: None)


async def first_message_is_believed(patch: pytest.MonkeyPatch, _: Stage) -> None:
    patch.setattr(CenterClock, "trusted", property(lambda _: True, lambda *_: None), raising=False)


async def nothing_is_announced(patch: pytest.MonkeyPatch, _: Stage) -> None:
    async def at_once(*_: Any) -> None:
        return None

    patch.setattr(Executor, "_announce", at_once)


async def scheduler_writes_itself(patch: pytest.MonkeyPatch, _: Stage) -> None:
    async def write(self: Scheduler, due: Sequence[Due]) -> None:
        items = [
            Item(
                subject=Subject(tenant_id=each.tenant_id, command_id=each.command_id),
                evidence=Evidence(kind=K.DUE, attempt=each.attempt, at=each.seen_at),
            )
            for each in due
        ]
        await apply(self._engine, items, self._terms)

    patch.setattr(Scheduler, "_ask", write)


async def letters_decide(patch: pytest.MonkeyPatch, stage: Stage) -> None:
    """They are taken as proof that it wasn't run, where they are stored."""
    patch.setattr(DeadLetterRecorder, "_send_back", writing(stage, kind=K.EXPIRED))


async def letters_off_the_road(patch: pytest.MonkeyPatch, stage: Stage) -> None:
    """They say what they say, where they are stored."""
    patch.setattr(DeadLetterRecorder, "_send_back", writing(stage, kind=K.LETTER))


def writing(stage: Stage, kind: ResultKind) -> Callable[[DeadLetterRecorder, Sequence[Any]], Awaitable[bool]]:
    """Dead letters, applied at once as evidence of this kind."""

    async def write(_: DeadLetterRecorder, opened: Sequence[Any]) -> bool:
        items = [item_of(each.way_back) for each in opened]
        said = [replace(item, evidence=structs.replace(item.evidence, kind=kind)) for item in items]
        await apply(stage.engine, said, stage.terms)
        return True

    return write


async def old_tokens_pass(patch: pytest.MonkeyPatch, _: Stage) -> None:
    patch.setattr(LaneTokens, "admit", lambda *_: True)
