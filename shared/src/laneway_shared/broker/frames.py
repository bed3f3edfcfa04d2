"""The few AMQP frames that pass once or more per command, as bytes. Everything rarer is left to aio-pika.

A frame is kind (1 byte), channel (2), size (4), payload, end mark. A message is a method frame, a header frame with
its properties, and as many body frames as it needs (AMQP 0-9-1, sections 2.3 and 4.2).
"""

import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
KINDS = frozenset({METHOD, HEADER, BODY, HEARTBEAT})
ENVELOPE = struct.Struct(">BHI")
OVERHEAD = ENVELOPE.size + 1
END = b"\xce"
A_HEARTBEAT = ENVELOPE.pack(HEARTBEAT, 0, 0) + END

BLOCKED, UNBLOCKED = 10 << 16 | 60, 10 << 16 | 61
CHANNEL_CLOSE = 20 << 16 | 40
PUBLISH, RETURN, DELIVER = (60 << 16 | method for method in (40, 50, 60))
ACK, REJECT, NACK = (60 << 16 | method for method in (80, 90, 120))

_BASIC = 60
_CONTENT_TYPE, _HEADERS, _DELIVERY_MODE, _CORRELATION_ID = 0x8000, 0x2000, 0x1000, 0x0400
_EXPIRATION, _MESSAGE_ID, _TIMESTAMP = 0x0100, 0x0080, 0x0040
_MANDATORY = b"\x01"
_PERSISTENT, _TRANSIENT = b"\x02", b"\x01"
_JSON = b"\x10application/json"
_WORD, _LONG, _LONG_LONG = struct.Struct(">H"), struct.Struct(">I"), struct.Struct(">Q")
_PUBLISH_METHOD, _HEADER_START = struct.Struct(">IH"), struct.Struct(">HHQH")
_TAG_METHOD = struct.Struct(">BHIIQBB")  # a whole frame: ack and reject are of one length


def publish(
    channel: int,
    exchange: str,
    routing_key: str,
    body: bytes,
    *,
    message_id: str,
    timestamp: int,
    correlation_id: str | None,
    ttl_ms: int | None,
    headers: Mapping[str, str | int],
    persistent: bool,
    most: int,
) -> bytes:
    """A mandatory publish of JSON. `most` is the longest frame the broker takes, `timestamp` in Unix seconds."""
    flags = _CONTENT_TYPE | _DELIVERY_MODE | _MESSAGE_ID | _TIMESTAMP
    properties = [_JSON]
    if headers:
        flags |= _HEADERS
        properties.append(_table(headers))
    properties.append(_PERSISTENT if persistent else _TRANSIENT)
    if correlation_id is not None:
        flags |= _CORRELATION_ID
        properties.append(_short(correlation_id))
    if ttl_ms is not None:
        flags |= _EXPIRATION
        properties.append(_short(str(ttl_ms)))
    properties += (_short(message_id), _LONG_LONG.pack(timestamp))
    method = _PUBLISH_METHOD.pack(PUBLISH, 0) + _short(exchange) + _short(routing_key) + _MANDATORY
    header = _HEADER_START.pack(_BASIC, 0, len(body), flags) + b"".join(properties)
    parts = [_frame(METHOD, channel, method), _frame(HEADER, channel, header)]
    room = most - OVERHEAD
    parts += [_frame(BODY, channel, body[at : at + room]) for at in range(0, len(body), room)]
    return b"".join(parts)


def ack(channel: int, tag: int, *, multiple: bool) -> bytes:
    """Take a delivery (with `multiple`: and all before it) off its queue."""
    return _TAG_METHOD.pack(METHOD, channel, 13, ACK, tag, multiple, END[0])


def reject(channel: int, tag: int) -> bytes:
    """Have a delivery dead-lettered."""
    return _TAG_METHOD.pack(METHOD, channel, 13, REJECT, tag, 0, END[0])


def confirmed(method: bytes) -> tuple[int, bool]:
    """Delivery tag and `multiple` of an ACK or NACK."""
    return _LONG_LONG.unpack_from(method, 4)[0], bool(method[12] & 1)


def delivered(method: bytes) -> tuple[int, bool, str]:
    """Delivery tag, whether it was redelivered, and the routing key of a DELIVER."""
    at = 5 + method[4]  # behind the consumer's tag
    tag, redelivered = _LONG_LONG.unpack_from(method, at)[0], bool(method[at + 8] & 1)
    at += 9
    at += 1 + method[at]  # the exchange
    return tag, redelivered, method[at + 1 : at + 1 + method[at]].decode(errors="replace")


def body_size(header: bytes) -> int:
    """Bytes of body that follow a header frame."""
    return int(_LONG_LONG.unpack_from(header, 4)[0])


def properties(header: bytes) -> dict[str, Any]:
    """What a header frame says of its message, without what Laneway has no use for; as far as it can be read."""
    flags, at = _WORD.unpack_from(header, 12)[0], 14
    found: dict[str, Any] = {}
    with suppress(IndexError, KeyError, struct.error, RecursionError):
        for flag, name, read in _PROPERTIES:
            if flags & flag:
                found[name], at = read(header, at)
    return found


def _frame(kind: int, channel: int, payload: bytes) -> bytes:
    return ENVELOPE.pack(kind, channel, len(payload)) + payload + END


def _short(text: str) -> bytes:
    raw = text.encode(errors="replace")
    return bytes((len(raw),)) + raw


def _table(entries: Mapping[str, str | int]) -> bytes:
    raw = b"".join(_short(name) + _field(value) for name, value in entries.items())
    return _LONG.pack(len(raw)) + raw


def _field(value: str | int) -> bytes:
    if isinstance(value, int):
        return b"l" + struct.pack(">q", value)
    raw = value.encode(errors="replace")
    return b"S" + _LONG.pack(len(raw)) + raw


# ----------------------------------------------------------------------------------------- reading
def _read_short(raw: bytes, at: int) -> tuple[str, int]:
    end = at + 1 + raw[at]
    return raw[at + 1 : end].decode(errors="replace"), end


def _read_octet(raw: bytes, at: int) -> tuple[int, int]:
    return raw[at], at + 1


def _read_time(raw: bytes, at: int) -> tuple[datetime | None, int]:
    seconds = _LONG_LONG.unpack_from(raw, at)[0]
    try:
        return datetime.fromtimestamp(seconds, UTC), at + 8
    except (OverflowError, ValueError, OSError):
        return None, at + 8


def _read_bytes(raw: bytes, at: int) -> tuple[bytes, int]:
    end = at + 4 + _LONG.unpack_from(raw, at)[0]
    return raw[at + 4 : end], end


def _read_text(raw: bytes, at: int) -> tuple[str | bytes, int]:
    value, end = _read_bytes(raw, at)
    try:
        return value.decode(), end
    except UnicodeDecodeError:
        return value, end


def _read_table(raw: bytes, at: int) -> tuple[dict[str, Any], int]:
    end = at + 4 + _LONG.unpack_from(raw, at)[0]
    at += 4
    table: dict[str, Any] = {}
    while at < end:
        name, at = _read_short(raw, at)
        table[name], at = _read_field(raw, at)
    return table, end


def _read_array(raw: bytes, at: int) -> tuple[list[Any], int]:
    end = at + 4 + _LONG.unpack_from(raw, at)[0]
    at += 4
    array = []
    while at < end:
        value, at = _read_field(raw, at)
        array.append(value)
    return array, end


def _read_decimal(raw: bytes, at: int) -> tuple[Decimal, int]:
    digits = struct.unpack_from(">i", raw, at + 1)[0]
    return Decimal(digits).scaleb(-raw[at]), at + 5


def _number(form: str) -> Callable[[bytes, int], tuple[Any, int]]:
    layout = struct.Struct(f">{form}")
    return lambda raw, at: (layout.unpack_from(raw, at)[0], at + layout.size)


_FIELDS: Mapping[bytes, Callable[[bytes, int], tuple[Any, int]]] = {
    b"t": _number("?"), b"b": _number("b"), b"B": _number("B"), b"s": _number("h"), b"u": _number("H"),
    b"I": _number("i"), b"i": _number("I"), b"l": _number("q"), b"L": _number("q"), b"f": _number("f"),
    b"d": _number("d"), b"D": _read_decimal, b"S": _read_text, b"x": _read_bytes, b"A": _read_array,
    b"T": _read_time, b"F": _read_table, b"V": lambda _raw, at: (None, at),
}  # fmt: skip
"""Values in tables as RabbitMQ types them."""


def _read_field(raw: bytes, at: int) -> tuple[Any, int]:
    return _FIELDS[raw[at : at + 1]](raw, at + 1)


_PROPERTIES = (
    (_CONTENT_TYPE, "content_type", _read_short),
    (0x4000, "content_encoding", _read_short),
    (_HEADERS, "headers", _read_table),
    (_DELIVERY_MODE, "delivery_mode", _read_octet),
    (0x0800, "priority", _read_octet),
    (_CORRELATION_ID, "correlation_id", _read_short),
    (0x0200, "reply_to", _read_short),
    (_EXPIRATION, "expiration", _read_short),
    (_MESSAGE_ID, "message_id", _read_short),
)
"""In the order in which they stand; those behind them are not read."""
