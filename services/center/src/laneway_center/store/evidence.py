"""Applying evidence in batches: lock, judge, write back, free lanes. One transaction, no remote call."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from laneway_center.store.database import transact
from laneway_center.store.history import ArchivedRows, refuse_moved
from laneway_center.store.locked_rows import Change, LockedRows, Subject
from laneway_center.store.withdrawals import OVERTAKEN, withdraw
from laneway_shared.judgement import Evidence, Policy, judge
from laneway_shared.lifecycle import Status


@dataclass(frozen=True, kw_only=True)
class Item:
    """One piece of evidence, and whom it is about."""

    subject: Subject
    evidence: Evidence
    detail: dict[str, Any] = field(default_factory=dict)  # for the timeline


@dataclass(frozen=True, kw_only=True)
class Applied:
    """What a batch did. `orphans` are the places (in the batch) of evidence about no command known here."""

    changes: tuple[Change, ...]
    orphans: tuple[int, ...]
    ready: frozenset[str] | None  # driver services at which some lane can send now; None: whichever has one waiting


@dataclass(frozen=True, kw_only=True)
class JudgeTerms:
    """How evidence is judged."""

    grace: timedelta
    policy: Policy
    chance: Callable[[], float] = field(default=lambda: random.uniform(-1, 1))  # noqa: S311 - jitter


async def apply(engine: AsyncEngine, items: Sequence[Item], terms: JudgeTerms) -> Applied:
    """Apply evidence in the order given.

    Raises:
        DatabaseAwayError: PostgreSQL can't be reached; nothing was written.
        DBAPIError: the database refused a value; nothing was written.
        TransitionRefusedError: a bug; nothing was written.
    """

    async def work() -> Applied:
        async with engine.begin() as connection:
            rows = LockedRows(connection, terms.grace)
            await rows.lock([item.subject for item in items])
            orphans = [n for n, item in enumerate(items) if not _judge(rows, item, terms)]
            ready = await rows.write()
            if orphans:
                orphans = await _note_late(connection, items, orphans, rows, terms)
            return Applied(changes=tuple(rows.changes), orphans=tuple(orphans), ready=ready)

    return await transact(work)


async def _note_late(
    connection: AsyncConnection, items: Sequence[Item], orphans: Sequence[int], rows: LockedRows, terms: JudgeTerms
) -> list[int]:
    """Evidence about archived commands goes into their timelines; returns the places of what is left."""
    archived = ArchivedRows(connection, terms.grace)
    await archived.lock([items[n].subject for n in orphans])
    left = [n for n in orphans if not _judge(archived, items[n], terms)]
    await archived.write()
    if left:
        await refuse_moved(connection, [items[n].subject for n in left], rows)
    return left


def _judge(rows: LockedRows, item: Item, terms: JudgeTerms) -> bool:
    command = rows.find(item.subject)
    if command is None:
        return False
    said = item.evidence
    verdict = judge(command.now_is, said, now=rows.now, policy=terms.policy, chance=terms.chance())
    attempt = command.now_is.attempt if said.attempt is None else said.attempt
    rows.record(command, verdict.snapshot, kind=said.kind, note=verdict.note, attempt=attempt, detail=item.detail)
    if command.now_is.status is Status.RETRY_WAIT and command.row["overtaken"]:
        withdraw(rows, command, OVERTAKEN, {})
    return True
