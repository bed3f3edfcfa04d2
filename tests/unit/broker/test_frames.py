"""Frames as aio-pika's own library reads and writes them."""

import struct
from datetime import UTC, datetime
from decimal import Decimal

import pamqp.frame
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands, header

from laneway_shared.broker import frames

TEXT = st.text(max_size=30)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**63 - 1), TEXT),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXT, inner, max_size=3)),
    max_leaves=8,
)


def parsed(raw: bytes) -> list[object]:
    found: list[object] = []
    while raw:
        size, channel, frame = pamqp.frame.unmarshal(raw)
        assert channel == 7
        found.append(frame)
        raw = raw[size:]
    return found


def message(body: bytes, most: int = 131_072, **given: object) -> list[object]:
    usual: dict[str, object] = {
        "message_id": "m.1", "timestamp": 1_893_456_000, "correlation_id": None, "ttl_ms": None, "headers": {},
        "persistent": True,
    }  # fmt: skip
    return parsed(frames.publish(7, "ex", "a.key", body, most=most, **(usual | given)))  # type: ignore[arg-type]


def test_a_publish_says_what_it_is_given() -> None:
    method, head, body = message(b"[1]", correlation_id="c", ttl_ms=1500, headers={"x-why": "ö", "n": -3})
    assert isinstance(method, commands.Basic.Publish)
    assert (method.exchange, method.routing_key, method.mandatory, method.immediate) == ("ex", "a.key", True, False)
    assert isinstance(head, header.ContentHeader)
    said = head.properties
    assert (said.content_type, said.delivery_mode, said.correlation_id) == ("application/json", 2, "c")
    assert (said.expiration, said.message_id, said.headers) == ("1500", "m.1", {"x-why": "ö", "n": -3})
    assert said.timestamp == datetime(2030, 1, 1, tzinfo=UTC)
    assert head.body_size == 3
    assert body.value == b"[1]"  # type: ignore[attr-defined]


def test_what_is_left_out_is_left_out() -> None:
    _, head, _ = message(b"x", persistent=False)
    said = head.properties  # type: ignore[attr-defined]
    assert (said.correlation_id, said.expiration, said.headers, said.delivery_mode) == (None, None, None, 1)


@pytest.mark.parametrize(("size", "bodies"), [(0, 0), (1, 1), (92, 1), (93, 2), (1000, 11)])
def test_a_long_body_goes_in_several_frames(size: int, bodies: int) -> None:
    body = bytes(range(256)) * 4
    _, head, *rest = message(body[:size], most=100)
    assert head.body_size == size  # type: ignore[attr-defined]
    assert len(rest) == bodies
    assert b"".join(part.value for part in rest) == body[:size]  # type: ignore[attr-defined]


def test_acks_and_rejects() -> None:
    [one], [many], [no] = (
        parsed(raw)
        for raw in (frames.ack(7, 2**40, multiple=False), frames.ack(7, 5, multiple=True), frames.reject(7, 6))
    )
    assert isinstance(one, commands.Basic.Ack)
    assert (one.delivery_tag, one.multiple) == (2**40, False)
    assert isinstance(many, commands.Basic.Ack)
    assert (many.delivery_tag, many.multiple) == (5, True)
    assert isinstance(no, commands.Basic.Reject)
    assert (no.delivery_tag, no.requeue) == (6, False)


@pytest.mark.parametrize("multiple", [False, True])
@pytest.mark.parametrize("kind", [commands.Basic.Ack, commands.Basic.Nack])
def test_confirms_are_read(kind: type[commands.Basic.Ack | commands.Basic.Nack], multiple: bool) -> None:
    raw = pamqp.frame.marshal(kind(delivery_tag=2**33, multiple=multiple), 7)
    assert frames.confirmed(raw[7:-1]) == (2**33, multiple)


@given(tag=st.integers(1, 2**63 - 1), again=st.booleans(), consumer=TEXT, exchange=st.just("dc3.e"), key=TEXT)
def test_deliveries_are_read(tag: int, again: bool, consumer: str, exchange: str, key: str) -> None:
    frame = commands.Basic.Deliver(consumer, tag, again, exchange, key)
    assert frames.delivered(pamqp.frame.marshal(frame, 7)[7:-1]) == (tag, again, key)


@given(
    given=st.dictionaries(TEXT, VALUES, max_size=5),
    message_id=st.text(min_size=1, max_size=30),
    size=st.integers(0, 2**40),
)
def test_properties_are_read_as_the_library_writes_them(given: dict[str, object], message_id: str, size: int) -> None:
    said = commands.Basic.Properties(
        content_type="application/json", content_encoding="utf-8", headers=given,  # type: ignore[arg-type]
        delivery_mode=2, priority=3, correlation_id="c", reply_to="r", expiration="5", message_id=message_id,
        timestamp=datetime(2030, 1, 1, tzinfo=UTC), message_type="t", user_id="u", app_id="a",
    )  # fmt: skip
    raw = pamqp.frame.marshal(header.ContentHeader(0, size, said), 7)[7:-1]
    found = frames.properties(raw)
    assert found["message_id"] == message_id
    assert found["correlation_id"] == "c"
    assert found["headers"] == given
    assert frames.body_size(raw) == size


def test_every_type_that_rabbitmq_writes_is_read() -> None:
    fields = {
        "t": (b"t\x01", True), "b": (b"b\xff", -1), "B": (b"B\xff", 255), "s": (b"s\xff\xfe", -2),
        "u": (b"u\xff\xfe", 65_534), "I": (b"I\xff\xff\xff\xff", -1), "i": (b"i\xff\xff\xff\xff", 2**32 - 1),
        "l": (b"l" + b"\xff" * 8, -1), "d": (b"d" + struct.pack(">d", 0.5), 0.5),
        "f": (b"f" + struct.pack(">f", 0.25), 0.25), "D": (b"D\x02" + struct.pack(">i", 314), Decimal("3.14")),
        "x": (b"x\x00\x00\x00\x02\xff\xff", b"\xff\xff"), "S": (b"S\x00\x00\x00\x02\xff\xff", b"\xff\xff"),
        "T": (b"T" + struct.pack(">Q", 1_893_456_000), datetime(2030, 1, 1, tzinfo=UTC)),
        "never": (b"T" + b"\xff" * 8, None), "V": (b"V", None),
        "A": (b"A\x00\x00\x00\x04t\x01b\x02", [True, 2]), "F": (b"F\x00\x00\x00\x04\x01nt\x00", {"n": False}),
    }  # fmt: skip
    table = b"".join(bytes((len(name),)) + name.encode() + raw for name, (raw, _) in fields.items())
    raw = struct.pack(">HHQH", 60, 0, 0, 0x2000) + struct.pack(">I", len(table)) + table
    assert frames.properties(raw)["headers"] == {name: value for name, (_, value) in fields.items()}


@given(st.binary(max_size=80))
def test_properties_that_make_no_sense_are_left_out(junk: bytes) -> None:
    assert isinstance(frames.properties(struct.pack(">HHQ", 60, 0, 0) + b"\xff\x80" + junk), dict)


def test_tables_deeper_than_anyone_needs_are_left_out() -> None:
    table = b""
    for _ in range(5000):
        table = b"\x01nF" + struct.pack(">I", len(table)) + table
    raw = struct.pack(">HHQH", 60, 0, 0, 0x2080) + struct.pack(">I", len(table)) + table + b"\x02id"
    assert frames.properties(raw) == {}
