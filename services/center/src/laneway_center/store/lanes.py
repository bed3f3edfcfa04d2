"""Lanes as operators see them, and what operators do to them: hold, release, skip the head."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from http import HTTPStatus
from typing import Any

from msgspec.structs import replace
from sqlalchemy import RowMapping
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from laneway_center.store.actions import Action, Operator, record_actions
from laneway_center.store.database import to_json, transact
from laneway_center.store.locked_rows import Change, LockedCommand, LockedRows, Subject
from laneway_center.store.statements import SQL
from laneway_center.store.withdrawals import OVERTAKEN, withdraw
from laneway_shared.lifecycle import RetryPlace, Status
from laneway_shared.problems import ProblemError

NEXT_SHOWN = 10
ORDERS = ("deepest", "longest_blocked")


@dataclass(frozen=True, kw_only=True)
class LaneFacts:
    """Everything that decides whether a lane moves, as read at one moment."""

    lane: RowMapping
    holder: RowMapping | None  # in flight, or waiting for its next attempt with the lane closed behind it
    waiting: Sequence[RowMapping]  # the next ones, in the order of their turn
    reviews: Sequence[RowMapping]
    by_priority: dict[int, int]
    driver: RowMapping | None
    terms: Sequence[RowMapping]  # per device in the lane


async def list_lanes(
    engine: AsyncEngine, tenant_id: int, *, order: str, driver: str | None, skip: int, limit: int
) -> list[RowMapping]:
    """Lanes in which something waits or is closed, by `order` (one of ORDERS).

    Raises:
        DatabaseAwayError: PostgreSQL can't be reached.
    """
    statement = SQL["deepest_lanes"] if order == "deepest" else SQL["longest_blocked_lanes"]

    async def work() -> list[RowMapping]:
        async with engine.connect() as connection:
            given = {"tenant_id": tenant_id, "driver": driver, "most": limit, "skip": skip}
            return list((await connection.execute(statement, given)).mappings())

    return await transact(work)


async def read_lane(engine: AsyncEngine, tenant_id: int, lane_key: str, *, ageing_s: float) -> LaneFacts:
    """One lane with all that decides about it.

    Raises:
        ProblemError: no device is in such a lane, and none ever was.
        DatabaseAwayError: PostgreSQL can't be reached.
    """

    async def work() -> LaneFacts:
        async with engine.connect() as connection:
            key = {"tenant_id": tenant_id, "lane_key": lane_key}
            lane = (await connection.execute(SQL["show_lane"], key)).mappings().first()
            terms = list((await connection.execute(SQL["lane_terms"], key)).mappings())
            if lane is None:
                raise unknown_lane(lane_key)
            given = {
                "lane_id": lane["lane_id"],
                "holder_id": lane["holder_id"],
                "most": NEXT_SHOWN,
                "ageing_s": ageing_s,
            }
            queue = list((await connection.execute(SQL["lane_queue"], given)).mappings())
            counts = await connection.execute(SQL["lane_waiting"], {"lane_id": lane["lane_id"]})
            driver = await connection.execute(SQL["lane_driver"], {"driver": lane["driver"]})
            holder = next((row for row in queue if row["id"] == lane["holder_id"]), None)
            rest = [row for row in queue if row is not holder]
            return LaneFacts(
                lane=lane,
                holder=holder,
                waiting=[row for row in rest if row["status"] != Status.MANUAL_REVIEW],
                reviews=[row for row in rest if row["status"] == Status.MANUAL_REVIEW],
                by_priority={row.priority: row.waiting for row in counts},
                driver=driver.mappings().first(),
                terms=terms,
            )

    return await transact(work)


async def hold_lane(engine: AsyncEngine, tenant_id: int, lane_key: str, operator: Operator) -> None:
    """Close a lane: nothing more is sent in it. What is in flight goes on, and its result doesn't open the lane.

    Raises:
        ProblemError: the lane is not known, or is held already.
        DatabaseAwayError: PostgreSQL can't be reached; nothing was written.
    """

    async def work(connection: AsyncConnection, lane: RowMapping) -> None:
        if lane["operator_hold"] is not None:
            raise ProblemError(
                HTTPStatus.CONFLICT, "LANE_HELD", f"lane {lane_key} is held by {lane['operator_hold']} already"
            )
        given = {"lane_id": lane["lane_id"], "operator": operator.name, "why": operator.why}
        await connection.execute(SQL["hold_lane"], given)

    await _act(engine, tenant_id, lane_key, operator, "lane.hold", work)


async def release_lane(engine: AsyncEngine, tenant_id: int, lane_key: str, operator: Operator) -> None:
    """Open a held lane.

    Raises:
        ProblemError: the lane is not known, or isn't held by an operator.
        DatabaseAwayError: PostgreSQL can't be reached; nothing was written.
    """

    async def work(connection: AsyncConnection, lane: RowMapping) -> None:
        if lane["operator_hold"] is None:
            raise ProblemError(HTTPStatus.CONFLICT, "LANE_NOT_HELD", f"lane {lane_key} is not held by an operator")
        await connection.execute(SQL["release_lane"], {"lane_id": lane["lane_id"]})

    await _act(engine, tenant_id, lane_key, operator, "lane.release", work)


@dataclass(frozen=True, kw_only=True)
class Skipped:
    """The command that was skipped, and what changed for it: nothing, or it ended."""

    command_id: str
    changes: tuple[Change, ...]


async def skip_head(
    engine: AsyncEngine, tenant_id: int, lane_key: str, operator: Operator, *, grace: timedelta, ageing_s: float
) -> Skipped:
    """Let a lane go on past what it waits for: a review that closes it, or a head that waits for its next attempt.

    The command goes to the tail and waits there; a review stays open. One that a newer command of its intent would
    overtake by this is SUPERSEDED: a grant must not run after its revocation.

    Raises:
        ProblemError: the lane is not known, nothing waits in it, or its head is on its way to the device.
        DatabaseAwayError: PostgreSQL can't be reached; nothing was written.
    """
    skipped: list[Skipped] = []

    async def work(connection: AsyncConnection, lane: RowMapping) -> None:
        given = {"lane_id": lane["lane_id"], "holder_id": lane["holder_id"], "most": 1000, "ageing_s": ageing_s}
        queue = list((await connection.execute(SQL["lane_queue"], given)).mappings())
        rows = LockedRows(connection, grace)
        await rows.lock([Subject(tenant_id=tenant_id, command_id=row["command_id"]) for row in queue])
        commands = [rows.find(Subject(tenant_id=tenant_id, command_id=row["command_id"])) for row in queue]
        found = [command for command in commands if command is not None]
        closing = next((c for c in found if c.review_hold), None)
        head = closing or next((c for c in found if c.now_is.status is not Status.MANUAL_REVIEW), None)
        if head is None:
            raise ProblemError(HTTPStatus.CONFLICT, "LANE_EMPTY", f"nothing waits in lane {lane_key}")
        await _skip(connection, rows, head, lane, operator)
        skipped[:] = [Skipped(command_id=head.row["command_id"], changes=tuple(rows.changes))]

    def after() -> dict[str, Any]:
        return {"commandId": skipped[0].command_id}

    await _act(engine, tenant_id, lane_key, operator, "lane.skip", work, after=after)
    return skipped[0]


async def _skip(
    connection: AsyncConnection, rows: LockedRows, head: LockedCommand, lane: RowMapping, operator: Operator
) -> None:
    detail = {"by": operator.name, "why": operator.why}
    attempt = head.now_is.attempt
    if head.review_hold:
        rows.lift_review_hold(head)
        note = "an operator let the lane go on; the review stays open"
        rows.record(head, head.now_is, kind="SKIPPED", note=note, attempt=attempt, detail=detail)
        await rows.write()
        return
    if not head.now_is.waits:
        raise ProblemError(
            HTTPStatus.CONFLICT,
            "LANE_IN_FLIGHT",
            f"command {head.row['command_id']} is on its way to the device ({head.now_is.status}); its result or, at "
            "the latest, its bound frees the lane",
        )
    if await _is_overtaken(connection, head):
        withdraw(rows, head, OVERTAKEN, detail)
        await rows.write()
        return
    rows.to_the_tail(head)
    note = "an operator put it behind the others of its lane"
    skipped = replace(head.now_is, retry=RetryPlace.RELAXED)
    rows.record(head, skipped, kind="SKIPPED", note=note, attempt=attempt, detail=detail)
    await rows.write()
    await rows.put_last(head, lane["last_priority"])


async def _is_overtaken(connection: AsyncConnection, head: LockedCommand) -> bool:
    """Whether a newer command of its intent is open."""
    intent = {name: head.row[name] for name in ("lane_id", "device_id", "intent_key")}
    same = (await connection.execute(SQL["live_intents"], {"rows": to_json([intent])})).mappings().all()
    return bool(same) and same[-1]["command_id"] != head.row["command_id"]


async def _act(
    engine: AsyncEngine,
    tenant_id: int,
    lane_key: str,
    operator: Operator,
    action: str,
    work: Callable[[AsyncConnection, RowMapping], Awaitable[None]],
    after: Callable[[], dict[str, Any]] = dict,
) -> None:
    """Lock the lane, act, write it down: one transaction."""

    async def act() -> None:
        async with engine.begin() as connection:
            key = {"tenant_id": tenant_id, "lane_key": lane_key}
            before = (await connection.execute(SQL["lock_lane"], key)).mappings().first()
            if before is None:
                raise unknown_lane(lane_key)
            await work(connection, before)
            then = (await connection.execute(SQL["lock_lane"], key)).mappings().one()
            done = Action(
                action=action,
                subject=lane_key,
                tenant_id=tenant_id,
                before=_marks(before),
                after=_marks(then) | after(),
            )
            await record_actions(connection, operator, [done])

    await transact(act)


def _marks(lane: RowMapping) -> dict[str, Any]:
    names = ("state", "depth", "token", "operator_hold", "operator_hold_reason", "review_holds")
    return {name: lane[name] for name in names}


def unknown_lane(lane_key: str) -> ProblemError:
    """Nothing was ever sent in such a lane."""
    return ProblemError(HTTPStatus.NOT_FOUND, "LANE_UNKNOWN", f"no lane {lane_key[:64]} is known")
