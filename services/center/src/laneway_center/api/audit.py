"""What operators did."""

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import Field

from laneway_center.api.bodies import Body, Instant, Text
from laneway_center.api.doors import Doors, Tenant, within
from laneway_center.store.actions import Filter, list_actions

router = APIRouter(prefix="/audit", tags=["audit"])


class ActionView(Body):
    """What an operator did."""

    id: int
    at: datetime
    operator: str
    action: str = Field(examples=["letter.replay"])
    subject: str
    why: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None


class ActionList(Body):
    """A page of actions, newest first. `nextCursor` fetches the next one."""

    actions: list[ActionView]
    next_cursor: str | None


@router.get("")
async def listing(
    doors: Doors,
    tenant_id: Tenant,
    operator: Annotated[Text | None, Query()] = None,
    action: Annotated[Text | None, Query(examples=["letter.replay"])] = None,
    subject: Annotated[Text | None, Query(description="A command's id, a lane's key, a dead letter's id.")] = None,
    since: Annotated[Instant | None, Query(alias="from")] = None,
    until: Annotated[Instant | None, Query(alias="to")] = None,
    cursor: Annotated[str | None, Query(pattern="^[0-9]{1,18}$", description="nextCursor of the page before.")] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
) -> ActionList:
    """Operators' actions that match, newest first."""
    wanted = Filter(
        tenant_id=tenant_id,
        operator=operator,
        action=action,
        subject=subject,
        since=since,
        until=until,
        before_id=int(cursor) if cursor else None,
        limit=limit + 1,
    )
    rows = await within(list_actions(doors.engine, wanted))
    views = [ActionView(**{name: row[name] for name in ActionView.model_fields}) for row in rows[:limit]]
    return ActionList(actions=views, next_cursor=str(views[-1].id) if len(rows) > limit else None)
