"""Reviews: commands of which nobody knows whether they acted, for a person to decide."""

from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query

from laneway_center.api.bodies import CommandView, Text, command_view
from laneway_center.api.doors import Doors, OperatorName, Tenant, json_body, within
from laneway_center.api.letter_bodies import OutcomeView, ReplayBody, sent_again
from laneway_center.api.letters import note_sent_again, terms_of
from laneway_center.api.review_bodies import ResolveBody, ReviewDetail, ReviewList, review_detail, review_view
from laneway_center.store.actions import Operator
from laneway_center.store.locked_rows import Subject
from laneway_center.store.operators import resolve, send_again
from laneway_center.store.reviews import list_reviews, show_review
from laneway_center.traces import note_changes
from laneway_shared.lifecycle import Status
from laneway_shared.messages import is_command_id
from laneway_shared.problems import ProblemError, responses

router = APIRouter(prefix="/reviews", tags=["reviews"])

_UNKNOWN = responses(HTTPStatus.NOT_FOUND)
_CHANGE = responses(HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT, HTTPStatus.UNSUPPORTED_MEDIA_TYPE)
CommandIdPath = Annotated[str, Path(description="The command's id.", examples=["0190c3e2-7b1c-7000-8000-3f2a9d5c1e77"])]


@router.get("")
async def listing(
    doors: Doors,
    tenant_id: Tenant,
    device_id: Annotated[int | None, Query(alias="deviceId", ge=1, le=2**63 - 1)] = None,
    driver: Annotated[Text | None, Query()] = None,
    cursor: Annotated[str | None, Query(pattern="^[0-9]{1,18}$", description="nextCursor of the page before.")] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
) -> ReviewList:
    """Open reviews, oldest command first."""
    found = list_reviews(
        doors.engine, tenant_id, after=int(cursor or 0), most=limit + 1, device_id=device_id, driver=driver
    )
    rows = await within(found)
    more = str(rows[limit - 1]["id"]) if len(rows) > limit else None
    reviews = [
        review_view(row, since=row["since"], why=row["why"], waiting_behind=row["waiting_behind"])
        for row in rows[:limit]
    ]
    return ReviewList(reviews=reviews, next_cursor=more)


@router.get("/{command_id}", responses=_UNKNOWN)
async def show(command_id: CommandIdPath, doors: Doors, tenant_id: Tenant) -> ReviewDetail:
    """One review with its evidence: attempts, answers before and since, the timeline. Decided ones stay readable."""
    review = await within(show_review(doors.engine, tenant_id, _known_form(command_id)))
    if review is None:
        raise _unknown(command_id)
    if review.began is None:
        raise ProblemError(HTTPStatus.NOT_FOUND, "REVIEW_UNKNOWN", f"command {command_id[:64]} was never in review")
    return review_detail(review, review.began)


@router.post("/{command_id}/resolve", responses=_CHANGE, dependencies=[Depends(json_body)])
async def decide(
    command_id: CommandIdPath, body: ResolveBody, doors: Doors, tenant_id: Tenant, operator: OperatorName
) -> CommandView:
    """Say what happened: SUCCESS or FAILED. Of two operators the second hears who was first."""
    subject = Subject(tenant_id=tenant_id, command_id=_known_form(command_id))
    who = Operator(name=operator, why=body.reason)
    grace = doors.grace
    change, row = await within(resolve(doors.engine, subject, who, Status(body.outcome), grace=grace))
    note_changes([change])
    doors.wakeups.lanes_ready()
    doors.wakeups.commands_moved([change.command_id])
    return command_view(row)


@router.post("/{command_id}/requeue", responses=_CHANGE, dependencies=[Depends(json_body)])
async def requeue(
    command_id: CommandIdPath, body: ReplayBody, doors: Doors, tenant_id: Tenant, operator: OperatorName
) -> OutcomeView:
    """Send it again, though it may have acted: at the tail of its lane, with a new deadline, as a new attempt."""
    subject = Subject(tenant_id=tenant_id, command_id=_known_form(command_id))
    who = Operator(name=operator, why=body.reason)
    again = await within(send_again(doors.engine, subject, who, terms_of(doors, body), reviewed=True))
    note_sent_again(doors, [again])
    return sent_again(None, again)


def _known_form(command_id: str) -> str:
    if not is_command_id(command_id):
        raise _unknown(command_id)
    return command_id.lower()


def _unknown(command_id: str) -> ProblemError:
    return ProblemError(HTTPStatus.NOT_FOUND, "COMMAND_UNKNOWN", f"no command {command_id[:64]} is known")
