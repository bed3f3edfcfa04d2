"""What operators send and get about dead letters."""

import base64
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

from pydantic import Field, StrictFloat, StrictInt
from sqlalchemy import RowMapping

from laneway_center.api.bodies import Body, CommandView, EventView, Identifier, Reason, command_view, event_view
from laneway_center.store.dead_ends import Listed, Shown
from laneway_center.store.operators import SentAgain
from laneway_shared.lifecycle import Status
from laneway_shared.problems import ProblemError

IDS_MOST = 100  # dead letters handled in one request
State = Literal["open", "replayed", "discarded"]
EndedAs = Literal["DEAD", "EXPIRED", "TIMEOUT"]


# ---------------------------------------------------------------------------------------- requests
class DiscardBody(Body):
    """Why it is set aside."""

    reason: Reason
    dry_run: bool = Field(default=False, description="Only say what would happen.")


class ReplayBody(DiscardBody):
    """Why and how commands are sent again."""

    expire_in: StrictInt | StrictFloat | None = Field(
        None, gt=0, le=1e9, description="Seconds of the new deadline; the center's default if missing."
    )
    force: bool = Field(
        default=False, description="Also unsafe commands that expired, and those a newer one has overtaken."
    )


class DiscardManyBody(DiscardBody):
    """Dead letters to set aside."""

    ids: list[Identifier] = Field(min_length=1, max_length=IDS_MOST)


class ReplayManyBody(ReplayBody):
    """Dead letters to replay."""

    ids: list[Identifier] = Field(min_length=1, max_length=IDS_MOST)


# ------------------------------------------------------------------------------------ dead letters
class DeadLetterView(Body):
    """One end of one command, or one message of no command."""

    id: int
    kind: Literal["command", "message"]
    state: State
    at: datetime
    reason: str = Field(examples=["expired"])
    error_code: str | None
    explanation: str | None
    driver: str | None
    device_id: int | None
    point_id: int | None
    command_id: str | None
    type: str | None
    retry_safety: str | None
    intent_key: str | None
    ended_as: EndedAs | None
    attempt: int | None
    command_status: Status | None = Field(description="As it stands by now.")
    handled_at: datetime | None
    handled_by: str | None
    handled_why: str | None


class DeadLetterList(Body):
    """A page of dead letters, newest first. `nextCursor` fetches the next one."""

    dead_letters: list[DeadLetterView]
    next_cursor: str | None


class GroupView(Body):
    """Dead letters that have the same reason, driver and error code."""

    reason: str
    driver: str | None
    error_code: str | None
    kind: Literal["command", "message"]
    count: int
    first: datetime
    last: datetime


class GroupList(Body):
    """Groups, the largest first, at most 200. `total` counts all that match."""

    total: int
    groups: list[GroupView]


class DeathView(Body):
    """One entry of `x-death`: that RabbitMQ gave the message up, where, why and how often."""

    reason: str | None
    queue: str | None
    count: int | None
    time: str | None
    exchange: str | None
    routing_keys: list[str]


class LetterView(Body):
    """A message as it came. `body` is text, or base64 where it isn't UTF-8; of a long one the beginning."""

    id: int
    received_at: datetime
    reason: str
    explanation: str | None
    queue: str
    routing_key: str
    attempt: int | None
    body: str
    body_encoding: Literal["text", "base64"]
    body_bytes: int = Field(description="Of the whole body.")
    body_cut: bool
    headers: dict[str, Any]
    x_death: list[DeathView]


class DeadLetterDetail(DeadLetterView):
    """A dead letter with everything known about it: the command, its timeline, and the messages RabbitMQ gave up."""

    command: CommandView | None
    events: list[EventView]
    letters: list[LetterView]


class OutcomeView(Body):
    """What became of one dead letter (or review), or would with `dryRun`."""

    id: int | None
    outcome: Literal["replayed", "would_replay", "discarded", "would_discard", "refused"]
    command_id: str | None = None
    command: CommandView | None = None
    previous_seq: int | None = None
    seq: int | None = Field(None, description="Its new place in the lane.")
    next_attempt: int | None = Field(None, description="Number of the attempt that will be made.")
    expire_at: datetime | None = None
    warnings: list[str] = Field(default_factory=list)
    problem: dict[str, Any] | None = None


class ReplayView(Body):
    """Outcomes, in the order of the request. With `dryRun`, `replayed` are those that would be."""

    replayed: int
    refused: int
    dry_run: bool
    results: list[OutcomeView]


class DiscardView(Body):
    """Outcomes, in the order of the request. With `dryRun`, `discarded` are those that would be."""

    discarded: int
    refused: int
    dry_run: bool
    results: list[OutcomeView]


# ---------------------------------------------------------------------------------------- from rows
_OF_COMMAND = ("type", "point_id", "retry_safety", "intent_key")
_OF_END = tuple(
    name for name in DeadLetterView.model_fields if name not in {"kind", "command_id", "command_status", *_OF_COMMAND}
)


def _fields(listed: Listed) -> dict[str, Any]:
    end, command = listed.end, listed.command
    same = {name: end[name] for name in _OF_END}
    of_command = {name: None if command is None else command[name] for name in _OF_COMMAND}
    return (
        same
        | of_command
        | {
            "kind": "message" if end["command_pk"] is None else "command",
            "command_id": end["command_uuid"],
            "command_status": None if command is None else Status(command["status"]),
        }
    )


def dead_letter_view(listed: Listed) -> DeadLetterView:
    """A dead end, with its command."""
    return DeadLetterView.model_construct(**_fields(listed))


def dead_letter_detail(shown: Shown) -> DeadLetterDetail:
    """A dead end with everything known about it."""
    return DeadLetterDetail.model_construct(
        **_fields(shown),
        command=None if shown.command is None else command_view(shown.command),
        events=[event_view(row) for row in shown.events],
        letters=[letter_view(row) for row in shown.letters],
    )


def group_view(row: RowMapping) -> GroupView:
    """A group of dead ends."""
    kind: Literal["command", "message"] = "message" if row["is_message"] else "command"
    same = ("reason", "driver", "error_code", "count", "first", "last")
    return GroupView(kind=kind, **{name: row[name] for name in same})


def letter_view(row: RowMapping) -> LetterView:
    """A row of dead_letter."""
    raw, headers = bytes(row["body"]), dict(row["headers"])
    deaths = headers.get("x-death")
    encoding: Literal["text", "base64"] = "text"
    cut = len(raw) < row["body_bytes"]
    try:
        body = _text(raw, cut=cut)
    except UnicodeDecodeError:
        body, encoding = base64.b64encode(raw).decode(), "base64"
    same = ("id", "received_at", "reason", "explanation", "queue", "routing_key", "attempt", "body_bytes")
    return LetterView(
        body=body,
        body_encoding=encoding,
        body_cut=cut,
        headers=headers,
        x_death=[_death(each) for each in deaths if isinstance(each, Mapping)] if isinstance(deaths, list) else [],
        **{name: row[name] for name in same},
    )


def _text(raw: bytes, *, cut: bool) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        if cut and error.start >= len(raw) - 3:  # cut within a character
            return raw[: error.start].decode()
        raise


def _death(entry: Mapping[str, Any]) -> DeathView:
    """Headers may hold anything."""
    keys = entry.get("routing-keys")
    count = entry.get("count")
    words = {name: None if entry.get(name) is None else str(entry[name]) for name in _DEATH_WORDS}
    return DeathView(
        count=count if isinstance(count, int) else None,
        routing_keys=[str(key) for key in keys] if isinstance(keys, list) else [],
        **words,
    )


_DEATH_WORDS = ("reason", "queue", "time", "exchange")


def sent_again(id_: int | None, again: SentAgain) -> OutcomeView:
    """A command that was put back into its lane, or would be."""
    return OutcomeView(
        id=id_,
        outcome="would_replay" if again.change is None else "replayed",
        command_id=str(again.command["command_id"]),
        command=command_view(again.command),
        previous_seq=again.previous_seq,
        seq=again.seq,
        next_attempt=again.next_attempt,
        expire_at=again.expire_at,
        warnings=list(again.warnings),
    )


def refused(id_: int, command_id: str | None, problem: ProblemError) -> OutcomeView:
    """What was not done, and why."""
    said = problem.problem.model_dump(exclude_none=True)
    return OutcomeView(id=id_, outcome="refused", command_id=command_id, problem=said)
