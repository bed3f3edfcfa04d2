"""Submitting and reading commands."""

from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Response
from pydantic import ValidationError

from laneway_center import metrics
from laneway_center.api.bodies import (
    BatchBody,
    BatchView,
    CancelBody,
    CommandList,
    CommandView,
    Instant,
    SubmitBody,
    Timeline,
    command_json,
    event_view,
    json_answer,
)
from laneway_center.api.doors import Acting, Doors, Tenant, json_body, within
from laneway_center.api.streams import LONGEST_WAIT_S, wait_for_end
from laneway_center.intake import Answer, Submission
from laneway_center.store.commands import Filter, get_command, list_commands, show_events
from laneway_center.store.locked_rows import Subject
from laneway_center.store.withdrawals import cancel
from laneway_center.traces import note_changes
from laneway_shared.lifecycle import Status
from laneway_shared.messages import is_command_id
from laneway_shared.problems import ProblemError, responses

router = APIRouter(prefix="/commands", tags=["commands"])

_REFUSALS = responses(
    HTTPStatus.BAD_REQUEST,
    HTTPStatus.NOT_FOUND,
    HTTPStatus.CONFLICT,
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
    HTTPStatus.UNPROCESSABLE_ENTITY,
    HTTPStatus.TOO_MANY_REQUESTS,
    HTTPStatus.SERVICE_UNAVAILABLE,
)
CommandIdPath = Annotated[str, Path(description="The command's id.", examples=["0190c3e2-7b1c-7000-8000-3f2a9d5c1e77"])]


@router.post(
    "",
    status_code=HTTPStatus.ACCEPTED,
    response_model=CommandView,
    responses={**_REFUSALS, 200: {"model": CommandView, "description": "Known already: as it stands."}},
    dependencies=[Depends(json_body)],
)
async def submit(body: SubmitBody, doors: Doors, tenant_id: Tenant) -> Response:
    """Submit a command. 202: stored, it will be sent in its turn. The same id and body again: 200."""
    answer = (await within(doors.intake.submit([body.submission(tenant_id)])))[0]
    if isinstance(answer, ProblemError):
        metrics.REFUSED.labels(answer.code).inc()
        raise answer
    view = command_json(answer.command)
    status = HTTPStatus.ACCEPTED if answer.created else HTTPStatus.OK
    return json_answer(view, status, {"Location": f"/commands/{view['commandId']}"})


@router.post("/batch", response_model=BatchView, responses=_REFUSALS, dependencies=[Depends(json_body)])
async def submit_batch(body: BatchBody, doors: Doors, tenant_id: Tenant) -> Response:
    """Submit up to 1,000 commands in one transaction; each has its own outcome."""
    items: list[dict[str, Any] | None] = []
    good: list[Submission] = []
    for given in body.commands:
        try:
            good.append(SubmitBody.model_validate(given).submission(tenant_id))
            items.append(None)
        except ValidationError as error:
            items.append(_problem_item(_invalid(error)))
    answers = iter(await within(doors.intake.submit(good))) if good else iter(())
    results = [_outcome(next(answers)) if item is None else item for item in items]
    statuses = [item["httpStatus"] for item in results]
    accepted, known = statuses.count(HTTPStatus.ACCEPTED), statuses.count(HTTPStatus.OK)
    refused = len(results) - accepted - known
    return json_answer({"accepted": accepted, "known": known, "refused": refused, "results": results})


def _outcome(answer: Answer) -> dict[str, Any]:
    if isinstance(answer, ProblemError):
        return _problem_item(answer)
    status = HTTPStatus.ACCEPTED if answer.created else HTTPStatus.OK
    return {"httpStatus": status, "command": command_json(answer.command), "problem": None}


def _problem_item(error: ProblemError) -> dict[str, Any]:
    metrics.REFUSED.labels(error.code).inc()
    problem = error.problem.model_dump(exclude_none=True)
    return {"httpStatus": error.status, "command": None, "problem": problem}


def _invalid(error: ValidationError) -> ProblemError:
    faults = error.errors(include_input=False, include_url=False, include_context=False)
    detail = "; ".join(f"{'.'.join(map(str, fault['loc'])) or 'body'}: {fault['msg']}" for fault in faults[:20])
    return ProblemError(HTTPStatus.UNPROCESSABLE_ENTITY, "VALIDATION", detail)


@router.get("/{command_id}", response_model=CommandView, responses=responses(HTTPStatus.NOT_FOUND))
async def show(
    command_id: CommandIdPath,
    doors: Doors,
    tenant_id: Tenant,
    wait: Annotated[float, Query(ge=0, le=LONGEST_WAIT_S, description="Seconds to wait for its end.")] = 0,
) -> Response:
    """A command as it stands; with `wait` as soon as it is final, or when that time is over."""
    row = None
    if is_command_id(command_id) and wait:
        row = await wait_for_end(doors, tenant_id, command_id.lower(), wait)
    elif is_command_id(command_id):
        row = await within(get_command(doors.engine, tenant_id, command_id.lower()))
    if row is None:
        raise _unknown(command_id)
    return json_answer(command_json(row))


@router.post(
    "/{command_id}/cancel",
    response_model=CommandView,
    responses=responses(HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT),
)
async def cancel_command(
    command_id: CommandIdPath,
    doors: Doors,
    tenant_id: Tenant,
    operator: Acting,
    body: CancelBody | None = None,
) -> Response:
    """Withdraw a command that has not been sent, or waits for its next attempt. Too late: 409 says why."""
    if not is_command_id(command_id):
        raise _unknown(command_id)
    subject = Subject(tenant_id=tenant_id, command_id=command_id.lower())
    by, why = operator.name if operator else None, body.reason if body else None
    work = cancel(doors.engine, subject, grace=doors.grace, by=by, why=why)
    change = await within(work)
    if change is not None:
        note_changes([change])
        doors.wakeups.lanes_ready()
        doors.wakeups.commands_moved([change.command_id])
    return await show(command_id, doors, tenant_id)


@router.get("/{command_id}/events", responses=responses(HTTPStatus.NOT_FOUND))
async def timeline(command_id: CommandIdPath, doors: Doors, tenant_id: Tenant) -> Timeline:
    """How it came there: every change, and every piece of evidence that changed nothing."""
    rows = []
    if is_command_id(command_id):
        rows = await within(show_events(doors.engine, tenant_id, command_id.lower()))
    if not rows:
        raise _unknown(command_id)
    return Timeline(command_id=command_id.lower(), events=[event_view(row) for row in rows])


def _unknown(command_id: str) -> ProblemError:
    return ProblemError(HTTPStatus.NOT_FOUND, "COMMAND_UNKNOWN", f"no command {command_id[:64]} is known")


@router.get("", response_model=CommandList, responses=responses(HTTPStatus.UNPROCESSABLE_ENTITY))
async def listing(
    doors: Doors,
    tenant_id: Tenant,
    device_id: Annotated[int | None, Query(alias="deviceId", ge=1, le=2**63 - 1)] = None,
    point_id: Annotated[int | None, Query(alias="pointId", ge=1, le=2**63 - 1)] = None,
    status: Annotated[list[Status] | None, Query()] = None,
    kind: Annotated[str | None, Query(alias="type", pattern="^(READ|WRITE)$")] = None,
    since: Annotated[Instant | None, Query(alias="from", description="Accepted at or after.")] = None,
    until: Annotated[Instant | None, Query(alias="to", description="Accepted before.")] = None,
    cursor: Annotated[str | None, Query(pattern="^[0-9]{1,18}$", description="nextCursor of the page before.")] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
) -> Response:
    """Commands that match, newest first."""
    wanted = Filter(
        tenant_id=tenant_id,
        device_id=device_id,
        point_id=point_id,
        status=[str(each) for each in status or ()],
        type=kind,
        since=since,
        until=until,
        before_id=int(cursor) if cursor else None,
        limit=limit + 1,
    )
    rows = await within(list_commands(doors.engine, wanted))
    more = len(rows) > limit
    cursor_after = str(rows[limit - 1]["id"]) if more else None
    return json_answer({"commands": [command_json(row) for row in rows[:limit]], "nextCursor": cursor_after})
