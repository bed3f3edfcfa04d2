"""The wire format: command, result and heartbeat messages as JSON (camelCase, UTC instants).

Encoding and decoding only, no I/O. Whoever can't read a message gets `UnreadableMessageError` with a
reason a person understands. Unknown fields are ignored; a higher `schemaVersion` is refused.
"""

import contextlib
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any

import msgspec

from laneway_shared.errors import ERROR_CODE_LIMIT, UnreadableMessageError, cut
from laneway_shared.lifecycle import ResultKind

SCHEMA_VERSION = 1
VALUE_LIMIT = 4096  # bytes of UTF-8: the longest value of a point
OPERATION_LIMIT = 16_384  # bytes of JSON: what a platform may want to be asked about later
OPERATION_DEPTH = 8
CALL_TIMEOUT_LIMIT_S = 600.0  # longer calls are accepted and asked after; RabbitMQ gives up on a delivery in 30 min
VERSION_LIMIT = 64
HEARTBEAT_KINDS = ("driver", "ack-listener", "center")  # a center that hears itself can hear the others
FIRST_YEAR, LAST_YEAR = 2000, 2200  # instants outside are mistakes, and overflow somewhere
Attempt = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Big = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_COMMAND_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class CommandType(StrEnum):
    """What a command asks of a point."""

    READ = "READ"
    WRITE = "WRITE"


class Wire(msgspec.Struct, rename="camel", kw_only=True, frozen=True):
    """A JSON object with camelCase names."""


class Constraints(Wire, frozen=True, omit_defaults=True):
    """What a written value must satisfy; the center checks first, the driver again."""

    value_type: str = "string"  # string, int, float, bool or json
    min: float | None = None
    max: float | None = None
    step: float | None = None
    enum: list[str] | None = None


class Target(Wire, frozen=True):
    """All a driver needs to reach the point, so that drivers hold no configuration of devices."""

    device_sn: str
    point: str
    profile: str | None = None
    address: dict[str, Any] = {}
    constraints: Constraints = Constraints()


class Payload(Wire, frozen=True):
    """What to do: `kind` is Read or Write (ReadPayload and WritePayload are understood too)."""

    kind: str
    device_id: Big
    point_id: Big
    value: str | None = None


class CommandMessage(Wire, frozen=True, kw_only=True):
    """One attempt at one command. `(command_id, attempt)` is its identity."""

    schema_version: int = SCHEMA_VERSION
    command_id: str
    attempt: Attempt
    tenant_id: Big
    type: CommandType
    payload: Payload
    target: Target
    retry_safety: str  # safe or unsafe to repeat
    gate: str  # ack or transport
    lane_key: str
    lane_token: Big
    source: str = "HTTP"
    source_user_id: Big | None = None
    occurred_at: datetime
    expire_at: datetime
    published_at: datetime  # the database's clock when the lane was claimed
    start_by: datetime  # the device is called before this or not at all
    call_timeout: float  # seconds the device call may take

    @property
    def unsafe(self) -> bool:
        """Whether running it twice does harm."""
        return self.retry_safety == "unsafe"


class ResultMessage(Wire, frozen=True, kw_only=True, omit_defaults=True):
    """What became of an attempt, or evidence about it.

    A device's answer may lack `attempt` (the current one is meant) and `command_id` (then `device_sn`
    names the device whose only command in flight is meant, and `matched_by` is "lane").
    """

    schema_version: int = SCHEMA_VERSION
    status: ResultKind
    tenant_id: Big | None = None  # a device doesn't know it
    command_id: str | None = None
    attempt: Attempt | None = None
    response_value: str | None = None
    error_code: str | None = None
    error_message: str | None = None
    retryable: bool = False
    operation: dict[str, Any] | None = None
    instance: str | None = None
    finished_at: datetime | None = None
    device_sn: str | None = None
    matched_by: str | None = None
    ack_timeout: float | None = None  # TRANSMITTED: seconds within which the device's answer is due
    reason: str | None = None  # LETTER: why the broker gave up (expired, rejected, delivery_limit)


class Heartbeat(Wire, frozen=True, kw_only=True, omit_defaults=True):
    """A driver or ack-listener instance says that it lives, every few seconds, and when it stops."""

    schema_version: int = SCHEMA_VERSION
    kind: str  # one of HEARTBEAT_KINDS
    service: str
    instance: str
    version: str
    state: str = "online"  # online or stopping
    capacity: int = 0  # commands it can run at once
    in_flight: int = 0
    clock_offset_ms: float | None = None  # its wall clock minus the center's, as far as it can tell
    profiles: list[str] = []  # ack-listener: the profiles it listens for
    sent_at: datetime | None = None


_encoder = msgspec.json.Encoder()
_command_decoder = msgspec.json.Decoder(CommandMessage)
_heartbeat_decoder = msgspec.json.Decoder(Heartbeat)
_json_decoder = msgspec.json.Decoder()


def encode(message: Wire | Sequence[Wire]) -> bytes:
    """The message as JSON bytes; a sequence becomes an array."""
    return _encoder.encode(message)


def _instant(value: datetime, field: str) -> datetime:
    if value.tzinfo is None:
        raise UnreadableMessageError(f"{field} has no time zone; send UTC instants such as 2030-01-01T00:00:00Z")
    try:
        instant = value.astimezone(UTC)
    except OverflowError:
        instant = None
    if instant is None or not FIRST_YEAR <= instant.year <= LAST_YEAR:
        raise UnreadableMessageError(f"{field} is no time between the years {FIRST_YEAR} and {LAST_YEAR}")
    return instant


def _is_plain(value: Any, depth: int) -> bool:
    """Whether a JSON value is no deeper than this, and its integers fit 64 bits."""
    if isinstance(value, dict):
        return depth > 0 and all(_is_plain(member, depth - 1) for member in value.values())
    if isinstance(value, list):
        return depth > 0 and all(_is_plain(member, depth - 1) for member in value)
    return not isinstance(value, int) or -(2**63) <= value < 2**63


def encode_json(value: Any) -> bytes:
    """Any JSON value as bytes."""
    return _encoder.encode(value)


def _version(document: object) -> dict[str, Any]:
    if not isinstance(document, dict):
        raise UnreadableMessageError("the message is not a JSON object")
    version = document.get("schemaVersion", SCHEMA_VERSION)
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise UnreadableMessageError(f"schemaVersion {version!r} is not a version number")
    if version > SCHEMA_VERSION:
        raise UnreadableMessageError(f"schemaVersion {version} is newer than {SCHEMA_VERSION}, the newest known here")
    return document


def _json(body: bytes) -> Any:
    try:
        return _json_decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UnreadableMessageError(f"not JSON: {error}") from None


def is_command_id(text: str) -> bool:
    """Whether the text is a UUID of 36 characters."""
    return _COMMAND_ID.fullmatch(text) is not None


def is_routing_name(text: str) -> bool:
    """Whether a device or service name may stand in a routing key."""
    return _NAME.fullmatch(text) is not None


def decode_command(body: bytes) -> CommandMessage:
    """The command in a message body.

    Raises:
        UnreadableMessageError: not JSON, a newer schema, a field missing or of the wrong kind.
    """
    command = _command(body)
    kind = command.payload.kind.removesuffix("Payload")
    if kind.upper() != command.type:
        raise UnreadableMessageError(f"payload.kind {command.payload.kind!r} doesn't fit type {command.type}")
    if not is_command_id(command.command_id):
        raise UnreadableMessageError("commandId is not a UUID of 36 characters")
    if command.retry_safety not in ("safe", "unsafe"):
        raise UnreadableMessageError(f"retrySafety {command.retry_safety!r} is neither safe nor unsafe")
    if command.attempt < 1 or command.lane_token < 1:
        raise UnreadableMessageError("attempt and laneToken start at 1")
    if not 0 < command.call_timeout <= CALL_TIMEOUT_LIMIT_S:
        raise UnreadableMessageError(f"callTimeout is not between 0 and {CALL_TIMEOUT_LIMIT_S:g} seconds")
    if command.type is CommandType.WRITE and command.payload.value is None:
        raise UnreadableMessageError("a WRITE needs payload.value")
    if kind == command.payload.kind and command.command_id.islower() and all(map(_is_plain_instant, _times(command))):
        return command  # as Laneway itself writes it
    return msgspec.structs.replace(
        command,
        command_id=command.command_id.lower(),
        payload=msgspec.structs.replace(command.payload, kind=kind),
        occurred_at=_instant(command.occurred_at, "occurredAt"),
        expire_at=_instant(command.expire_at, "expireAt"),
        published_at=_instant(command.published_at, "publishedAt"),
        start_by=_instant(command.start_by, "startBy"),
    )


def _command(body: bytes) -> CommandMessage:
    with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        command = _command_decoder.decode(body)
        if command.schema_version == SCHEMA_VERSION:
            return command
    document = _version(_json(body))  # says what is wrong in words of ours
    try:
        return msgspec.convert(document, CommandMessage)
    except (msgspec.ValidationError, RecursionError) as error:
        raise UnreadableMessageError(str(error)) from None


def _times(command: CommandMessage) -> tuple[datetime, ...]:
    return command.occurred_at, command.expire_at, command.published_at, command.start_by


def _is_plain_instant(value: datetime) -> bool:
    return value.tzinfo is UTC and FIRST_YEAR <= value.year <= LAST_YEAR


def _result(document: object) -> ResultMessage:
    fields = dict(_version(document))
    status = fields.get("status")
    if isinstance(status, str):
        fields["status"] = status.upper()
    try:
        result = msgspec.convert(fields, ResultMessage)
    except (msgspec.ValidationError, RecursionError) as error:
        raise UnreadableMessageError(str(error)) from None
    if result.command_id is None and result.device_sn is None:
        raise UnreadableMessageError("a result needs commandId or deviceSn")
    if not _is_plain(result.operation, OPERATION_DEPTH) or len(encode_json(result.operation)) > OPERATION_LIMIT:
        raise UnreadableMessageError("operation is too large, too deep, or holds numbers beyond 64 bits")
    if result.command_id is not None and not is_command_id(result.command_id):
        raise UnreadableMessageError("commandId is not a UUID of 36 characters")
    return msgspec.structs.replace(
        result,
        command_id=result.command_id.lower() if result.command_id else None,
        response_value=cut(result.response_value, VALUE_LIMIT),
        error_code=cut(result.error_code, ERROR_CODE_LIMIT),
        error_message=cut(result.error_message),
        finished_at=_instant(result.finished_at, "finishedAt") if result.finished_at else None,
    )


def decode_results(body: bytes) -> list[ResultMessage | UnreadableMessageError]:
    """The results in a message body: one object or an array. An unreadable member doesn't spoil the others.

    Raises:
        UnreadableMessageError: the body as a whole can't be read.
    """
    document = _json(body)
    if not isinstance(document, list):
        return [_result(document)]
    results: list[ResultMessage | UnreadableMessageError] = []
    for member in document:
        try:
            results.append(_result(member))
        except UnreadableMessageError as error:
            results.append(error)
    return results


def decode_heartbeat(body: bytes) -> Heartbeat:
    """The heartbeat in a message body.

    Raises:
        UnreadableMessageError: not JSON, a newer schema, or a name that can't be one.
    """
    try:
        heartbeat = msgspec.convert(_version(_json(body)), Heartbeat)
    except (msgspec.ValidationError, RecursionError) as error:
        raise UnreadableMessageError(str(error)) from None
    for name in (heartbeat.service, heartbeat.instance, *heartbeat.profiles):
        if not is_routing_name(name):
            raise UnreadableMessageError(f"{name[:80]!r} is not a name: letters, digits, _ and - only, at most 64")
    if not heartbeat.version.isprintable() or len(heartbeat.version) > VERSION_LIMIT:
        raise UnreadableMessageError("version is no version")
    if heartbeat.kind not in HEARTBEAT_KINDS or heartbeat.state not in ("online", "stopping"):
        raise UnreadableMessageError(f"unknown kind {heartbeat.kind!r} or state {heartbeat.state!r}")
    return heartbeat
