"""Operators' actions: who did what to what, and why. Written in the transaction of the change itself."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from laneway_center.store.database import to_json
from laneway_center.store.statements import SQL


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
