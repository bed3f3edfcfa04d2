"""Lanes: what waits where, why, and what an operator does about it."""

from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Any, Literal

import orjson
from fastapi import APIRouter, Depends, Path, Query
from sqlalchemy import RowMapping

from laneway_center.api.bodies import Body, Reason
from laneway_center.api.doors import Behind, Doors, OperatorName, Tenant, json_body, within
from laneway_center.explanation import blockers, headline
from laneway_center.policies import POLICIES, Resolved, resolve
from laneway_center.store.actions import Operator
from laneway_center.store.lanes import LaneFacts, hold_lane, list_lanes, read_lane, release_lane, skip_head
from laneway_center.traces import note_changes
from laneway_shared.lifecycle import Status
from laneway_shared.problems import responses

router = APIRouter(prefix="/lanes", tags=["lanes"])

LaneKeyPath = Annotated[str, Path(max_length=128, examples=["device:1024"])]
_CHANGES = responses(HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY)


class ReasonBody(Body):
    """Why an operator acts."""

    reason: Reason


class InFlightView(Body):
    """The command that holds the lane."""

    command_id: str
    status: str
    attempt: int
    since: datetime | None


class LaneView(Body):
    """A lane as it stands. `blockedFor` (seconds): since its command in flight was claimed, or it could have sent."""

    lane_key: str
    driver: str
    state: str
    depth: int
    ready_at: datetime
    blocked_for: float | None
    operator_hold: str | None
    operator_hold_reason: str | None
    operator_hold_at: datetime | None
    review_holds: int
    in_flight: InFlightView | None


class LaneList(Body):
    """A page of lanes. `nextCursor` fetches the next one."""

    lanes: list[LaneView]
    next_cursor: str | None


class PolicyView(Body):
    """A policy's value and the level that set it: lane, device, driver or center.

    An `ackTimeout` of null set by `family`: the one of the device's profile, or the center's if it has none.
    """

    value: Any
    set_by: str


class TermsView(Body):
    """How the lane behaves towards commands of one device, and points of it that say otherwise."""

    device_id: int
    device_sn: str
    driver: str
    policies: dict[str, PolicyView]
    points: list[dict[str, Any]]


class LaneDetail(LaneView):
    """A lane with the policies that hold in it, per device."""

    devices: list[TermsView]


class BlockerView(Body):
    """One thing that keeps the lane from sending, and what would take it away."""

    kind: str
    says: str
    would_free: str


class WaitingView(Body):
    """A command of the lane."""

    command_id: str
    status: str
    priority: int
    attempt: int
    since: datetime
    next_try_at: datetime | None
    expire_at: datetime
    intent_key: str | None


class Explanation(LaneView):
    """Why the lane stands where it stands: the first blocker in one sentence, then all of them."""

    says: str
    would_free: str | None
    blockers: list[BlockerView]
    head: WaitingView | None
    waiting: int
    waiting_by_priority: dict[int, int]
    next: list[str]
    reviews: list[WaitingView]
    policies: dict[str, PolicyView]
    devices: list[TermsView]


@router.get("")
async def listing(
    doors: Doors,
    tenant_id: Tenant,
    order: Annotated[Literal["deepest", "longest_blocked"], Query()] = "deepest",
    driver: Annotated[str | None, Query(max_length=64)] = None,
    cursor: Annotated[str | None, Query(pattern="^[0-9]{1,9}$", description="nextCursor of the page before.")] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
) -> LaneList:
    """Lanes in which something waits, is on its way, or is held."""
    skip = int(cursor or 0)
    work = list_lanes(doors.engine, tenant_id, order=order, driver=driver, skip=skip, limit=limit + 1)
    rows = await within(work)
    more = str(skip + limit) if len(rows) > limit else None
    return LaneList(lanes=[LaneView(**_lane_fields(row)) for row in rows[:limit]], next_cursor=more)


@router.get("/{lane_key:path}/explain", responses=responses(HTTPStatus.NOT_FOUND))
async def explain(lane_key: LaneKeyPath, doors: Doors, tenant_id: Tenant) -> Explanation:
    """What is in flight, since when, waiting for what, what would free it, what waits behind it, by which policy."""
    facts = await within(read_lane(doors.engine, tenant_id, lane_key, ageing_s=doors.settings.ageing_s))
    found = blockers(facts, capacity_lead=doors.settings.capacity_lead)
    says, would_free = headline(facts, found)
    devices = [_terms_view(row, doors) for row in facts.terms]
    return Explanation(
        **_lane_fields(facts.lane),
        says=says,
        would_free=would_free,
        blockers=[BlockerView(kind=each.kind, says=each.says, would_free=each.would_free) for each in found],
        head=_waiting_view(facts.holder or facts.waiting[0]) if facts.holder or facts.waiting else None,
        waiting=facts.lane["depth"],
        waiting_by_priority=facts.by_priority,
        next=[row["command_id"] for row in facts.waiting],
        reviews=[_waiting_view(row) for row in facts.reviews],
        policies=devices[0].policies if devices else {},
        devices=devices,
    )


@router.post("/{lane_key:path}/hold", responses=_CHANGES, dependencies=[Depends(json_body)])
async def hold(
    lane_key: LaneKeyPath, body: ReasonBody, doors: Doors, tenant_id: Tenant, operator: OperatorName
) -> LaneDetail:
    """Close a lane: what is in flight goes on, nothing more is sent until it is released."""
    await within(hold_lane(doors.engine, tenant_id, lane_key, Operator(name=operator, why=body.reason)))
    return await show(lane_key, doors, tenant_id)


@router.post("/{lane_key:path}/release", responses=_CHANGES, dependencies=[Depends(json_body)])
async def release(
    lane_key: LaneKeyPath, body: ReasonBody, doors: Doors, tenant_id: Tenant, operator: OperatorName
) -> LaneDetail:
    """Open a held lane."""
    await within(release_lane(doors.engine, tenant_id, lane_key, Operator(name=operator, why=body.reason)))
    doors.wakeups.lanes_ready()
    return await show(lane_key, doors, tenant_id)


@router.post("/{lane_key:path}/skip", responses=_CHANGES, dependencies=[Depends(json_body)])
async def skip(
    lane_key: LaneKeyPath, body: ReasonBody, doors: Doors, tenant_id: Tenant, operator: OperatorName
) -> LaneDetail:
    """Let a lane go on past a head that waits for its next attempt, or past a review that closes it."""
    who = Operator(name=operator, why=body.reason)
    ageing_s = doors.settings.ageing_s
    skipped = await within(skip_head(doors.engine, tenant_id, lane_key, who, grace=doors.grace, ageing_s=ageing_s))
    note_changes(skipped.changes)
    doors.wakeups.lanes_ready()
    doors.wakeups.commands_moved([skipped.command_id])
    return await show(lane_key, doors, tenant_id)


@router.get("/{lane_key:path}", responses=responses(HTTPStatus.NOT_FOUND))
async def show(lane_key: LaneKeyPath, doors: Doors, tenant_id: Tenant) -> LaneDetail:
    """A lane as it stands, and the policies that hold in it with the level that set each."""
    facts: LaneFacts = await within(read_lane(doors.engine, tenant_id, lane_key, ageing_s=doors.settings.ageing_s))
    return LaneDetail(**_lane_fields(facts.lane), devices=[_terms_view(row, doors) for row in facts.terms])


_SAME_NAME = (
    "lane_key", "driver", "state", "depth", "ready_at", "operator_hold", "operator_hold_reason", "operator_hold_at",
    "review_holds",
)  # fmt: skip


def _lane_fields(row: RowMapping) -> dict[str, Any]:
    holder = None
    if row["holder"] is not None and row["holder_status"] != Status.RETRY_WAIT:  # that one waits, at the head
        holder = InFlightView(
            command_id=row["holder"],
            status=row["holder_status"],
            attempt=row["holder_attempt"],
            since=row["claimed_at"],
        )
    since = row["ready_at"] if row["holder"] is None else row["claimed_at"]
    waits = row["holder"] is not None or row["depth"] > 0
    return {name: row[name] for name in _SAME_NAME} | {
        "in_flight": holder,
        "blocked_for": max(0.0, (row["now"] - since).total_seconds()) if waits and since is not None else None,
    }


def _waiting_view(row: RowMapping) -> WaitingView:
    names = ("command_id", "status", "priority", "attempt", "expire_at", "intent_key")
    return WaitingView(
        **{name: row[name] for name in names}, since=row["update_time"], next_try_at=row["next_visible_at"]
    )


def _terms_view(row: RowMapping, doors: Behind) -> TermsView:
    resolved = resolve(row, defaults=doors.settings.lane_defaults, command={}, unsafe=False)
    return TermsView(
        device_id=row["device_id"],
        device_sn=row["device_sn"],
        driver=row["driver"],
        policies={_NAMES.get(n, n): _policy_view(n, r) for n, r in resolved.items()},
        points=orjson.loads(row["points"] or "[]"),
    )


_SHOWN = ("gate", "retry", "reviewPolicy", "maxAttempts", "ackTimeout", "depthLimit", "onFull")
_NAMES = dict(zip(POLICIES, _SHOWN, strict=True))


def _policy_view(name: str, resolved: Resolved) -> PolicyView:
    if name != "ack_timeout_ms":
        return PolicyView(value=resolved.value, set_by=resolved.set_by)
    if resolved.value is None:  # its driver tells with each hand-over
        return PolicyView(value=None, set_by="family")
    return PolicyView(value=resolved.value / 1000, set_by=resolved.set_by)
