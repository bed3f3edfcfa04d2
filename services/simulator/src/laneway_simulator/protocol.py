"""What a lock and its platform say to each other: commands and answers, from the lock's side.

The inverse of the profile `ydlink-lock`; a test holds the two together.
"""

import re
from dataclasses import dataclass
from typing import Any

import msgspec

SN_PATTERN = r"^[A-Za-z0-9_-]{1,64}$"
_SN = re.compile(SN_PATTERN)
_ATTEMPT = re.compile(r"(.+)\.([0-9]{1,9})", re.DOTALL)
_TEXT_LIMIT = 4096  # characters of a value; longer ones no lock has room for
_NAME_LIMIT = 128  # characters of message ids and points


@dataclass(frozen=True, slots=True)
class Command:
    """One message to a lock. `value` is None for reads; `valid_until` is in epoch milliseconds."""

    msg_id: str
    point: str
    op: str  # read or write
    value: str | None
    valid_until: float | None


class UnfitCommandError(Exception):
    """A lock can't do what the message says. With `msg_id` it can at least say so."""

    def __init__(self, reason: str, msg_id: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.msg_id = msg_id


class _Down(msgspec.Struct, rename="camel"):
    msg_id: str
    cmd: str
    op: str
    value: str | int | float | bool | None = None
    valid_until: float | None = None


def is_sn(text: str) -> bool:
    """Whether a lock can have this name."""
    return _SN.fullmatch(text) is not None


def split_msg_id(msg_id: str | None) -> tuple[str | None, int | None]:
    """`<commandId>.<attempt>` in two; (None, None) when the id has another form (a lock doesn't mind)."""
    match = _ATTEMPT.fullmatch(msg_id or "")
    return (match[1], int(match[2])) if match else (None, None)


def parse_command(payload: bytes) -> Command:
    """Read a message to a lock.

    Raises:
        UnfitCommandError: with the reason; with the message id where the message has a usable one.
    """
    try:
        document = msgspec.json.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UnfitCommandError(f"not JSON: {error}") from None
    if not isinstance(document, dict):
        raise UnfitCommandError("not a JSON object")
    msg_id = document.get("msgId")
    if not isinstance(msg_id, str) or not 0 < len(msg_id) <= _NAME_LIMIT:
        raise UnfitCommandError(f"msgId must be a text of 1 to {_NAME_LIMIT} characters")
    try:
        down = msgspec.convert(document, _Down)
    except msgspec.ValidationError as error:
        raise UnfitCommandError(str(error), msg_id) from None
    return _checked(down)


def _checked(down: _Down) -> Command:
    if down.op not in ("read", "write"):
        raise UnfitCommandError("op must be read or write", down.msg_id)
    if not 0 < len(down.cmd) <= _NAME_LIMIT:
        raise UnfitCommandError(f"cmd must have 1 to {_NAME_LIMIT} characters", down.msg_id)
    if down.op == "read":
        return Command(down.msg_id, down.cmd, down.op, None, down.valid_until)
    if down.value is None:
        raise UnfitCommandError("a write needs a value", down.msg_id)
    value = down.value if isinstance(down.value, str) else msgspec.json.encode(down.value).decode()
    if len(value) > _TEXT_LIMIT:
        raise UnfitCommandError(f"a value has at most {_TEXT_LIMIT} characters", down.msg_id)
    return Command(down.msg_id, down.cmd, down.op, value, down.valid_until)


def encode_ack(sn: str, msg_id: str, result: str, value: str | None = None, reason: str | None = None) -> bytes:
    """An answer as the lock sends it."""
    return msgspec.json.encode({"msgId": msg_id, "sn": sn, "result": result, "value": value, "reason": reason})


def complete_ack(sn: str, body: bytes) -> bytes:
    """An answer written by hand: an object with a msgId gets what it lacks, anything else stays as it is."""
    try:
        document: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return body
    if not isinstance(document, dict) or "msgId" not in document:
        return body
    return msgspec.json.encode({"msgId": None, "sn": sn, "result": "ok", "value": None, "reason": None} | document)
