"""What callers send and get, as JSON (camelCase)."""

import hashlib
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Annotated, Any, Literal

import orjson
from fastapi import Response
from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    field_validator,
    model_validator,
)
from pydantic.alias_generators import to_camel
from sqlalchemy import RowMapping

from laneway_center.intake import Submission, new_command_id
from laneway_shared.lifecycle import FINAL, Status
from laneway_shared.messages import FIRST_YEAR, LAST_YEAR, is_command_id
from laneway_shared.problems import Problem

OBJECT_BYTES = 16_384  # of a device's address: it travels in every message


def storable(text: str) -> str:
    """Refuse what PostgreSQL can't keep in a text."""
    if "\x00" in text:
        raise ValueError("must not contain the NUL character")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("must be valid Unicode") from None
    return text


def _said(text: str) -> str:
    said = storable(text).strip()
    if not said:
        raise ValueError("must say something")
    return said


def _command_id(text: str) -> str:
    if not is_command_id(text):
        raise ValueError("must be a UUID of 36 characters")
    return text.lower()


def _sane(instant: datetime) -> datetime:
    try:
        in_utc = instant.astimezone(UTC)
    except OverflowError:
        in_utc = None
    if in_utc is None or not FIRST_YEAR <= in_utc.year <= LAST_YEAR:
        raise ValueError(f"must lie between the years {FIRST_YEAR} and {LAST_YEAR}")
    return in_utc


def plain(value: Any, depth: int = 16) -> Any:
    """Refuse JSON that PostgreSQL or the wire can't keep: too deep, NUL, numbers beyond 64 bits or not finite."""
    if isinstance(value, dict | list) and depth == 0:
        raise ValueError("is nested too deep")
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise ValueError("holds a name that is not text")
        return {storable(key): plain(member, depth - 1) for key, member in value.items()}
    if isinstance(value, list):
        return [plain(member, depth - 1) for member in value]
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError("holds a number beyond 64 bits")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("holds a number that is not finite")
    return value


def _small(value: dict[str, Any]) -> dict[str, Any]:
    if len(orjson.dumps(value)) > OBJECT_BYTES:
        raise ValueError(f"is longer than {OBJECT_BYTES} bytes")
    return value


Instant = Annotated[AwareDatetime, AfterValidator(_sane)]
PlainObject = Annotated[dict[str, Any], AfterValidator(plain), AfterValidator(_small)]
Text = Annotated[StrictStr, AfterValidator(storable)]
CommandId = Annotated[StrictStr, AfterValidator(_command_id)]
Identifier = Annotated[int, Field(strict=True, ge=1, le=2**63 - 1)]
Reason = Annotated[StrictStr, AfterValidator(_said), Field(max_length=500, description="Why; kept.")]
Value = StrictStr | StrictBool | StrictInt | StrictFloat | dict[str, Any]


class Body(BaseModel):
    """A JSON object with camelCase names; unknown names are refused."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True)


class SubmitBody(Body):
    """A command to submit."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"deviceId": 1024, "pointId": 2048, "type": "WRITE", "value": "1", "expireIn": 30},
                {
                    "commandId": "0190c3e2-7b1c-7000-8000-3f2a9d5c1e77",
                    "deviceId": 1024,
                    "pointId": 2049,
                    "type": "READ",
                },
            ]
        }
    )

    command_id: CommandId | None = Field(None, description="Idempotency key; made here if missing.")
    device_id: Identifier
    point_id: Identifier
    type: Literal["READ", "WRITE"]
    value: Value | None = Field(None, description="For WRITE. Numbers and booleans are taken as their JSON text.")
    expire_in: StrictInt | StrictFloat | None = Field(
        None, gt=0, le=1e9, description="Seconds until the command may no longer start."
    )
    expire_at: Instant | None = Field(None, description="The same as an instant.")
    priority: int | None = Field(None, strict=True, ge=0, le=9, description="Smaller goes first in its lane.")
    intent_key: Annotated[Text, Field(min_length=1, max_length=128)] | None = Field(
        None, description="What the command is about, for its device: commands of one intent can replace each other."
    )
    merge: Literal["latest", "reject_duplicate"] | None = Field(
        None,
        description="With intentKey: replace those of the intent that still wait, or answer with the live one.",
    )
    purpose: Literal["grant", "revoke"] | None = Field(
        None, description="A revoke goes first and supersedes waiting grants of its intentKey; else the point's."
    )
    gate: Literal["ack", "transport"] | None = None
    retry_safety: Literal["safe", "unsafe"] | None = None
    max_attempts: int | None = Field(None, strict=True, ge=1, le=100)
    source: Literal["HTTP", "GRPC", "AGENTIC", "SCHEDULED"] = "HTTP"
    source_user_id: Identifier | None = None
    occurred_at: Instant | None = Field(None, description="When the caller decided it, by the caller's clock.")

    @field_validator("type", mode="before")
    @classmethod
    def _upper(cls, value: Any) -> Any:
        return value.upper() if isinstance(value, str) else value

    @field_validator("value")
    @classmethod
    def _as_text(cls, value: Value | None) -> str | None:
        if value is None:
            return None
        if isinstance(value, str):
            return storable(value)
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError("must be a finite number")
        try:
            return storable(orjson.dumps(value).decode() if not isinstance(value, int) else _integer(value))
        except (TypeError, RecursionError):  # orjson's errors are TypeErrors
            raise ValueError("must be JSON") from None

    @model_validator(mode="after")
    def _one_deadline(self) -> "SubmitBody":
        if self.expire_in is not None and self.expire_at is not None:
            raise ValueError("give expireIn or expireAt, not both")
        return self

    @model_validator(mode="after")
    def _merge_needs_intent(self) -> "SubmitBody":
        if self.merge is not None and self.intent_key is None:
            raise ValueError("merge needs an intentKey")
        return self

    def submission(self, tenant_id: int) -> Submission:
        """The command as the intake takes it."""
        fields = self.model_dump(exclude={"command_id"}, exclude_none=True)
        canonical = orjson.dumps(fields, option=orjson.OPT_SORT_KEYS | orjson.OPT_UTC_Z)
        return Submission(
            tenant_id=tenant_id,
            command_id=self.command_id or new_command_id(),
            body_hash=hashlib.sha256(canonical).hexdigest(),
            device_id=self.device_id,
            point_id=self.point_id,
            type=self.type,
            value=None if self.value is None else str(self.value),
            expire_in_s=self.expire_in,
            expire_at=self.expire_at,
            priority=self.priority,
            intent_key=self.intent_key,
            merge=self.merge,
            purpose=self.purpose,
            gate=self.gate,
            retry_safety=self.retry_safety,
            max_attempts=self.max_attempts,
            source=self.source,
            source_user_id=self.source_user_id,
            occurred_at=self.occurred_at,
            id_made_here=self.command_id is None,
        )


def _integer(value: int) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if abs(value) >= 10**300:
        raise ValueError("is too large a number")
    return str(value)


class BatchBody(Body):
    """Up to 1,000 commands. Each has its own outcome; all are stored in one transaction, in this order."""

    commands: list[dict[str, Any]] = Field(
        min_length=1, max_length=1000, examples=[[{"deviceId": 1024, "pointId": 2048, "type": "WRITE", "value": "1"}]]
    )


class CommandView(Body):
    """A command as it stands."""

    command_id: str
    status: Status
    final: bool
    type: str
    device_id: int
    point_id: int
    value: str | None
    response_value: str | None
    error_code: str | None
    error_message: str | None
    attempt: int
    attempts_spent: int
    max_attempts: int
    lane_key: str
    seq: int
    priority: int
    driver: str
    gate: str
    retry: str
    retry_safety: str
    review_policy: str
    source: str
    source_user_id: int | None
    intent_key: str | None
    purpose: str | None
    occurred_at: datetime
    accepted_at: datetime
    sent_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    expire_at: datetime
    next_try_at: datetime | None
    answer_due_at: datetime | None


_OTHERWISE = {"value": "request_value", "accepted_at": "create_time", "next_try_at": "next_visible_at"}
_COMPUTED = {"command_id", "status", "final", "answer_due_at"}
_COLUMNS = [(to_camel(name), _OTHERWISE.get(name, name)) for name in CommandView.model_fields if name not in _COMPUTED]


def command_json(row: Mapping[Any, Any]) -> dict[str, Any]:
    """A row of point_command (with its lane_key) as callers see it: a CommandView, ready for `json_answer`.

    Every submit and every poll makes one; building the model first would cost more than all the rest.
    """
    status = row["status"]
    view: dict[str, Any] = {"commandId": str(row["command_id"]), "status": status, "final": status in FINAL}
    for name, column in _COLUMNS:
        view[name] = row[column]
    view["answerDueAt"] = row["ack_due_at"] if status == Status.AWAITING_ACK else None
    return view


def command_view(row: Mapping[Any, Any]) -> CommandView:
    """The same as a model, as a part of others."""
    return CommandView.model_validate(command_json(row))


def json_answer(content: Any, status: int = HTTPStatus.OK, headers: Mapping[str, str] | None = None) -> Response:
    """What a door answers, from plain values and instants."""
    body = orjson.dumps(content, option=orjson.OPT_UTC_Z)
    return Response(body, status, headers=headers, media_type="application/json")


class CancelBody(Body):
    """Why a command is withdrawn."""

    reason: Annotated[Text, Field(max_length=500)] | None = None


class BatchItem(Body):
    """What became of one command of a batch: `command` when accepted (202) or known (200), else `problem`."""

    http_status: int = Field(examples=[202])
    command: CommandView | None = None
    problem: Problem | None = None


class BatchView(Body):
    """Outcomes, in the order of the request."""

    accepted: int
    known: int
    refused: int
    results: list[BatchItem]


class CommandList(Body):
    """A page of commands, newest first. `nextCursor` fetches the next one."""

    commands: list[CommandView]
    next_cursor: str | None


class EventView(Body):
    """A line of a command's timeline. `from` and `to` are the same where evidence changed nothing."""

    at: datetime
    kind: str
    from_status: str | None = Field(alias="from")
    to_status: str | None = Field(alias="to")
    attempt: int
    note: str
    detail: dict[str, Any] | None


class Timeline(Body):
    """All that is known of how a command came where it is, oldest first."""

    command_id: str
    events: list[EventView]


def event_view(row: RowMapping) -> EventView:
    """A row of point_command_event as callers see it."""
    return EventView.model_construct(**{name: row[name] for name in EventView.model_fields})
