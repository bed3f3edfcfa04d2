"""Following a command live: an answer as soon as it ends, and its timeline line by line (server-sent events)."""

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Annotated

import structlog
from fastapi import APIRouter, Header, Path
from fastapi.responses import StreamingResponse
from pydantic import BaseModel
from sqlalchemy import RowMapping
from sqlalchemy.ext.asyncio import AsyncEngine

from laneway_center.api.bodies import command_view, event_view
from laneway_center.api.doors import Behind, Doors, Tenant, within
from laneway_center.following import MOST, Followers
from laneway_center.store.commands import get_command, lines_after, newest_lines, show_events
from laneway_center.store.database import DatabaseAwayError
from laneway_shared.lifecycle import FINAL
from laneway_shared.messages import is_command_id
from laneway_shared.problems import ProblemError, responses

log = structlog.get_logger(__name__)
router = APIRouter(prefix="/commands", tags=["commands"])

LONGEST_WAIT_S = 30.0
LOOK_EVERY_S = 1.0  # for news that nobody was woken for
HEARTBEAT_S = 10.0
LINES_MOST = 500  # read at once
_LINE_ID = re.compile("[0-9]{1,18}")


async def look_for_news(engine: AsyncEngine, followers: Followers) -> None:
    """Wake-ups may be lost: look after all followed commands together, until cancelled."""
    while True:
        await asyncio.sleep(LOOK_EVERY_S)
        commands = followers.commands()
        if not commands:
            continue
        try:
            followers.looked(await newest_lines(engine, commands))
        except DatabaseAwayError as error:
            log.warning("follow.database_away", following=len(commands), error=error.message)


async def wait_for_end(doors: Behind, tenant_id: int, command_id: str, timeout_s: float) -> RowMapping | None:
    """The command as soon as it is final, or as it stands when the time is over or this process stops.

    None: there is no such command.

    Raises:
        ProblemError: it isn't final, and too many wait already.
        DatabaseAwayError: PostgreSQL can't be reached.
    """
    ends_at = time.monotonic() + timeout_s
    followers = doors.wakeups.followers
    if followers.full:
        row = await within(get_command(doors.engine, tenant_id, command_id))
        if row is None or row["status"] in FINAL:
            return row
        _check_room(doors)
    row = None
    with followers.follow(command_id, ends_only=True) as follower:  # before the look: an end in between wakes
        while True:
            now = await within(get_command(doors.engine, tenant_id, command_id))
            row = row if now is None else now
            left = ends_at - time.monotonic()
            if row is None or row["status"] in FINAL or left <= 0 or followers.closed:
                return row
            follower.command_pk = row["id"]
            await follower.wait(left)


@router.get(
    "/{command_id}/stream",
    response_class=StreamingResponse,
    responses={
        200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}, "description": "Lines as they come."},
        **responses(HTTPStatus.NOT_FOUND),
    },
)
async def stream(
    command_id: Annotated[str, Path(examples=["0190c3e2-7b1c-7000-8000-3f2a9d5c1e77"])],
    doors: Doors,
    tenant_id: Tenant,
    last_event_id: Annotated[str | None, Header(description="Only lines after this one.")] = None,
) -> StreamingResponse:
    """Follow a command: each line of its timeline as it comes (`line`), at its end the command (`end`)."""
    row = None
    if is_command_id(command_id):
        row = await within(get_command(doors.engine, tenant_id, command_id.lower()))
    if row is None:
        raise ProblemError(HTTPStatus.NOT_FOUND, "COMMAND_UNKNOWN", f"no command {command_id[:64]} is known")
    _check_room(doors)
    parts = _parts(doors, tenant_id, row, _line_id(last_event_id))
    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    return StreamingResponse(parts, media_type="text/event-stream", headers=headers)


async def _parts(doors: Behind, tenant_id: int, row: RowMapping, after: int) -> AsyncIterator[str]:
    followers, command_id, pk = doors.wakeups.followers, str(row["command_id"]), row["id"]
    with followers.follow(command_id, pk) as follower:
        while True:
            lines: list[RowMapping] = []
            with contextlib.suppress(DatabaseAwayError):  # the stream outlives it
                # in this order: all lines up to an end that is seen are there to be read
                now = await within(get_command(doors.engine, tenant_id, command_id))
                row = row if now is None else now
                ended = row["status"] in FINAL
                if ended:  # it may be archived
                    every = await within(show_events(doors.engine, tenant_id, command_id))
                    lines = [line for line in every if line["id"] > after]
                else:
                    lines = await within(lines_after(doors.engine, pk, after, most=LINES_MOST))
                for line in lines:
                    after = line["id"]
                    yield _event("line", event_view(line), after)
                if ended:
                    yield _event("end", command_view(row))
                    return
            if followers.closed:
                yield "event: stopping\ndata: {}\n\n"
                return
            if len(lines) < LINES_MOST and not await follower.wait(HEARTBEAT_S):
                yield ": heartbeat\n\n"


def _event(name: str, view: BaseModel, line: int | None = None) -> str:
    number = "" if line is None else f"id: {line}\n"
    return f"{number}event: {name}\ndata: {view.model_dump_json(by_alias=True)}\n\n"


def _line_id(given: str | None) -> int:
    return int(given) if given and _LINE_ID.fullmatch(given) else 0


def _check_room(doors: Behind) -> None:
    if doors.wakeups.followers.full:
        raise ProblemError(
            HTTPStatus.SERVICE_UNAVAILABLE,
            "TOO_MANY_FOLLOWERS",
            f"{MOST} callers wait here already; ask again without waiting",
            headers={"Retry-After": "1"},
        )
