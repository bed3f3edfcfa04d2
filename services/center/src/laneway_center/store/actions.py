"""Operators' actions: who did what to what, and why. Written in the transaction of the change itself."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import RowMapping, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from laneway_center.store.database import to_json, transact
from laneway_center.store.statements import SQL
from laneway_center.store.tables import operator_action


@dataclass(frozen=True, kw_only=True)
class Operator:
    """Who acts, and why."""

    name: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Action:
    """One act. `before` and `after` hold what it changed, as JSON."""

    action: str  # noun.verb: letter.replay, review.resolve, lane.hold …
    subject: str  # what it was done to: a command id, a lane key, the id of a dead letter
    tenant_id: int | None = None  # None: of no tenant
    before: Mapping[str, Any] | None = None
    after: Mapping[str, Any] | None = None


async def record_actions(connection: AsyncConnection, operator: Operator, actions: Sequence[Action]) -> None:
    """Write acts down, in the transaction that does them: one is there exactly if the other is."""
    if not actions:
        return
    rows = [{"n": n, "operator": operator.name, "why": operator.why} | asdict(act) for n, act in enumerate(actions)]
    await connection.execute(SQL["record_actions"], {"rows": to_json(rows)})


@dataclass(frozen=True, kw_only=True)
class Filter:
    """Which actions, newest first, after the cursor (a row id). Those of no tenant are everybody's."""

    tenant_id: int
    operator: str | None = None
    action: str | None = None
    subject: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    before_id: int | None = None
    limit: int = 50


async def list_actions(engine: AsyncEngine, wanted: Filter) -> list[RowMapping]:
    """Actions that match.

    Raises:
        DatabaseAwayError: PostgreSQL can't be reached.
    """
    c = operator_action.c
    query = select(operator_action).where(or_(c.tenant_id == wanted.tenant_id, c.tenant_id.is_(None)))
    exact = ((c.operator, wanted.operator), (c.action, wanted.action), (c.subject, wanted.subject))
    for column, value in exact:
        if value is not None:
            query = query.where(column == value)
    if wanted.since is not None:
        query = query.where(c.at >= wanted.since)
    if wanted.until is not None:
        query = query.where(c.at < wanted.until)
    if wanted.before_id is not None:
        query = query.where(c.id < wanted.before_id)
    query = query.order_by(c.id.desc()).limit(wanted.limit)

    async def work() -> list[RowMapping]:
        async with engine.connect() as connection:
            return list((await connection.execute(query)).mappings())

    return await transact(work)
