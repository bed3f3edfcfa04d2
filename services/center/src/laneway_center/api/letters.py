"""Dead letters: what is stuck and why; replaying and discarding it."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from http import HTTPStatus
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Path, Query

from laneway_center.api.bodies import CommandId, Instant, Text
from laneway_center.api.doors import Behind, Doors, OperatorName, Tenant, json_body, within
from laneway_center.api.letter_bodies import (
    DeadLetterDetail,
    DeadLetterList,
    DiscardBody,
    DiscardManyBody,
    DiscardView,
    EndedAs,
    GroupList,
    OutcomeView,
    ReplayBody,
    ReplayManyBody,
    ReplayView,
    State,
    dead_letter_detail,
    dead_letter_view,
    group_view,
    refused,
    sent_again,
)
from laneway_center.store.actions import Operator
from laneway_center.store.dead_ends import Filter, group_dead_ends, list_dead_ends, show_dead_end
from laneway_center.store.operators import Again, SentAgain
from laneway_center.store.replays import Handled, discard, replay
from laneway_center.traces import note_changes
from laneway_shared.problems import ProblemError, responses

router = APIRouter(prefix="/dead-letters", tags=["dead letters"])

_UNKNOWN = responses(HTTPStatus.NOT_FOUND)
_CHANGE = responses(HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT, HTTPStatus.UNSUPPORTED_MEDIA_TYPE)
ID_DIGITS = 18
_CURSOR = r"^[0-9T:.+-]{1,40}_[0-9]{1,18}$"
LetterId = Annotated[str, Path(description="Its id.", examples=["17"])]


async def wanted(
    tenant_id: Tenant,
    state: Annotated[list[State] | None, Query(description="open if missing.")] = None,
    kind: Annotated[Literal["command", "message"] | None, Query()] = None,
    status: Annotated[list[EndedAs] | None, Query(description="How the command ended.")] = None,
    reason: Annotated[list[Text] | None, Query(examples=[["expired"]])] = None,
    driver: Annotated[Text | None, Query()] = None,
    device_id: Annotated[int | None, Query(alias="deviceId", ge=1, le=2**63 - 1)] = None,
    command_id: Annotated[CommandId | None, Query(alias="commandId")] = None,
    error_code: Annotated[Text | None, Query(alias="errorCode")] = None,
    since: Annotated[Instant | None, Query(alias="from", description="Ended or received at or after.")] = None,
    until: Annotated[Instant | None, Query(alias="to", description="Ended or received before.")] = None,
) -> Filter:
    """The filters that list and groups share."""
    return Filter(
        tenant_id=tenant_id,
        states=state or ["open"],
        kind=kind,
        ended_as=status or (),
        reasons=reason or (),
        driver=driver,
        device_id=device_id,
        command_id=command_id,
        error_code=error_code,
        since=since,
        until=until,
    )


Wanted = Annotated[Filter, Depends(wanted)]


@router.get("")
async def listing(
    doors: Doors,
    matching: Wanted,
    cursor: Annotated[str | None, Query(pattern=_CURSOR, description="nextCursor of the page before.")] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
) -> DeadLetterList:
    """Dead letters that match, newest first: ends of commands that may be sent again, and messages of no command."""
    rows = await within(list_dead_ends(doors.engine, replace(matching, before=_place(cursor), limit=limit + 1)))
    views = [dead_letter_view(row) for row in rows[:limit]]
    more = f"{views[-1].at.isoformat()}_{views[-1].id}" if len(rows) > limit else None
    return DeadLetterList.model_construct(dead_letters=views, next_cursor=more)


def _place(cursor: str | None) -> tuple[datetime, int] | None:
    if cursor is None:
        return None
    at, _, id_ = cursor.partition("_")
    try:
        instant = datetime.fromisoformat(at)
    except ValueError:
        instant = None
    if instant is None or instant.tzinfo is None:
        raise ProblemError(
            HTTPStatus.UNPROCESSABLE_ENTITY, "VALIDATION", "query.cursor: must be the nextCursor of the page before"
        )
    return instant, int(id_)


@router.get("/groups")
async def groups(doors: Doors, matching: Wanted) -> GroupList:
    """How many match, by reason, driver and error code."""
    rows = await within(group_dead_ends(doors.engine, matching))
    return GroupList(total=rows[0]["total"] if rows else 0, groups=[group_view(row) for row in rows])


@router.get("/{letter_id}", responses=_UNKNOWN)
async def show(letter_id: LetterId, doors: Doors, tenant_id: Tenant) -> DeadLetterDetail:
    """One dead letter: the command as it stands, its timeline, and the messages RabbitMQ gave up."""
    shown = await within(show_dead_end(doors.engine, tenant_id, _id(letter_id)))
    if shown is None:
        raise _unknown(letter_id)
    return dead_letter_detail(shown)


@router.post("/replay", responses=_CHANGE, dependencies=[Depends(json_body)])
async def replay_many(body: ReplayManyBody, doors: Doors, tenant_id: Tenant, operator: OperatorName) -> ReplayView:
    """Replay up to 100 dead letters in one transaction; each has its own outcome. Sent again, nothing is doubled."""
    results = [_outcome(each) for each in await _replay(doors, tenant_id, body.ids, operator, body)]
    done = sum(each.problem is None for each in results)
    return ReplayView(replayed=done, refused=len(results) - done, dry_run=body.dry_run, results=results)


@router.post("/discard", responses=_CHANGE, dependencies=[Depends(json_body)])
async def discard_many(body: DiscardManyBody, doors: Doors, tenant_id: Tenant, operator: OperatorName) -> DiscardView:
    """Set up to 100 dead letters aside for good; their commands stay as they ended."""
    handled = await _discard(doors, tenant_id, body.ids, operator, body)
    results = [_discarded(each, dry_run=body.dry_run) for each in handled]
    done = sum(each.problem is None for each in results)
    return DiscardView(discarded=done, refused=len(results) - done, dry_run=body.dry_run, results=results)


@router.post("/{letter_id}/replay", responses=_CHANGE, dependencies=[Depends(json_body)])
async def replay_one(
    letter_id: LetterId, body: ReplayBody, doors: Doors, tenant_id: Tenant, operator: OperatorName
) -> OutcomeView:
    """Send its command again: at the tail of its lane, with a new deadline, as a new attempt. Once."""
    [handled] = await _replay(doors, tenant_id, [_id(letter_id)], operator, body)
    if handled.problem:
        raise handled.problem
    return _outcome(handled)


@router.post("/{letter_id}/discard", responses=_CHANGE, dependencies=[Depends(json_body)])
async def discard_one(
    letter_id: LetterId, body: DiscardBody, doors: Doors, tenant_id: Tenant, operator: OperatorName
) -> OutcomeView:
    """Set it aside for good."""
    [handled] = await _discard(doors, tenant_id, [_id(letter_id)], operator, body)
    if handled.problem:
        raise handled.problem
    return _discarded(handled, dry_run=body.dry_run)


async def _replay(doors: Behind, tenant_id: int, ids: Sequence[int], operator: str, body: ReplayBody) -> list[Handled]:
    who = Operator(name=operator, why=body.reason)
    handled = await within(replay(doors.engine, tenant_id, ids, who, terms_of(doors, body)))
    note_sent_again(doors, [each.again for each in handled if each.again])
    return handled


async def _discard(
    doors: Behind, tenant_id: int, ids: Sequence[int], operator: str, body: DiscardBody
) -> list[Handled]:
    who = Operator(name=operator, why=body.reason)
    return await within(discard(doors.engine, tenant_id, ids, who, dry_run=body.dry_run))


def terms_of(doors: Behind, body: ReplayBody) -> Again:
    """How commands are to be sent again.

    Raises:
        ProblemError: the new deadline is too far away.
    """
    seconds = doors.settings.default_deadline_s if body.expire_in is None else body.expire_in
    longest = doors.settings.longest_deadline_s
    if seconds > longest:
        detail = f"a deadline may be at most {longest:g} s ahead"
        raise ProblemError(HTTPStatus.UNPROCESSABLE_ENTITY, "DEADLINE_TOO_FAR", detail)
    return Again(
        expire_in=timedelta(seconds=seconds),
        grace=doors.grace,
        force=body.force,
        dry_run=body.dry_run,
    )


def note_sent_again(doors: Behind, again: Sequence[SentAgain]) -> None:
    """Log and count it, and wake the dispatchers and whoever follows these commands."""
    changes = [each.change for each in again if each.change]
    if changes:
        note_changes(changes)
        doors.wakeups.lanes_ready()
        doors.wakeups.commands_moved(change.command_id for change in changes)


def _outcome(handled: Handled) -> OutcomeView:
    return _refused(handled) if handled.again is None else sent_again(handled.id, handled.again)


def _discarded(handled: Handled, *, dry_run: bool) -> OutcomeView:
    if handled.problem is not None:
        return _refused(handled)
    outcome: Literal["would_discard", "discarded"] = "would_discard" if dry_run else "discarded"
    return OutcomeView(id=handled.id, outcome=outcome, command_id=handled.command_id)


def _refused(handled: Handled) -> OutcomeView:
    assert handled.problem is not None  # noqa: S101 - it is one or the other
    return refused(handled.id, handled.command_id, handled.problem)


def _id(given: str) -> int:
    if not (given.isascii() and given.isdigit() and len(given) <= ID_DIGITS):
        raise _unknown(given)
    return int(given)


def _unknown(given: str) -> ProblemError:
    return ProblemError(HTTPStatus.NOT_FOUND, "LETTER_UNKNOWN", f"no dead letter {given[:64]} is known")
