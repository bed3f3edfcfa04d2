"""The wire format: what is read, what is refused, and that nothing else ever comes out of bytes."""

import contextlib
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from laneway_shared.errors import UnreadableMessageError
from laneway_shared.lifecycle import ResultKind
from laneway_shared.messages import ResultMessage, decode_command, decode_heartbeat, decode_results, encode

ID = "0190c3e2-0000-7000-8000-000000000001"
NOON = "2030-01-01T12:00:00Z"
COMMAND: dict[str, Any] = {
    "schemaVersion": 1,
    "commandId": ID,
    "attempt": 1,
    "tenantId": 1,
    "type": "WRITE",
    "payload": {"kind": "Write", "deviceId": 1, "pointId": 2, "value": "1"},
    "target": {"deviceSn": "A100", "point": "lock"},
    "retrySafety": "unsafe",
    "gate": "ack",
    "laneKey": "device:1",
    "laneToken": 7,
    "occurredAt": NOON,
    "expireAt": NOON,
    "publishedAt": NOON,
    "startBy": NOON,
    "callTimeout": 5.0,
}
RESULT: dict[str, Any] = {"commandId": ID, "attempt": 1, "tenantId": 1, "status": "SUCCESS", "finishedAt": NOON}
HEARTBEAT: dict[str, Any] = {"kind": "driver", "service": "virtual", "instance": "v-1", "version": "1"}


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"a": value}
    return value


def command(**changes: Any) -> bytes:
    return json.dumps(COMMAND | changes).encode()


def test_a_command_is_read() -> None:
    read = decode_command(command(later="ignored", commandId=ID.upper()))
    assert (read.command_id, read.unsafe, read.payload.value) == (ID, True, "1")


def test_other_spellings_of_kind_and_status_are_understood() -> None:
    assert decode_command(command(payload=COMMAND["payload"] | {"kind": "WritePayload"})).payload.kind == "Write"
    [result] = decode_results(json.dumps(RESULT | {"status": "success"}).encode())
    assert isinstance(result, ResultMessage)
    assert result.status is ResultKind.SUCCESS


@pytest.mark.parametrize(
    "changes",
    [
        {"schemaVersion": 2},
        {"schemaVersion": "1"},
        {"commandId": "42"},
        {"attempt": 0},
        {"attempt": 3_000_000_000},
        {"tenantId": 2**63},
        {"laneToken": 0},
        {"laneToken": 2**63},
        {"type": "READ"},
        {"payload": {"kind": "Write", "deviceId": 2**64, "pointId": 1, "value": "1"}},
        {"payload": {"kind": "Write", "deviceId": 1, "pointId": 1}},
        {"retrySafety": "perhaps"},
        {"callTimeout": 0},
        {"callTimeout": -1},
        {"startBy": "2030-01-01T12:00:00"},
        {"startBy": "9999-12-31T23:59:59-14:00"},
        {"publishedAt": "0001-01-01T00:00:00+14:00"},
        {"publishedAt": "9999-12-31T23:59:59Z"},
    ],
)
def test_a_command_that_cant_be_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(UnreadableMessageError):
        decode_command(command(**changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"schemaVersion": 99},
        {"status": "NONSENSE"},
        {"commandId": None},
        {"attempt": 3_000_000_000},
        {"attempt": -1},
        {"tenantId": 2**63},
        {"operation": deep(300)},
        {"operation": deep(20)},
        {"operation": {"id": 10**30}},
        {"operation": {"id": "x" * 20_000}},
        {"finishedAt": "9999-12-31T23:59:59-14:00"},
        {"finishedAt": "0001-01-01T00:00:00+14:00"},
    ],
)
def test_a_result_that_cant_be_is_refused_and_spoils_no_other(changes: dict[str, Any]) -> None:
    with pytest.raises(UnreadableMessageError):
        decode_results(json.dumps(RESULT | changes).encode())
    both = decode_results(json.dumps([RESULT, RESULT | changes]).encode())
    assert [type(each) for each in both] == [ResultMessage, UnreadableMessageError]


@pytest.mark.parametrize(
    "changes",
    [
        {"version": "\x00"},
        {"version": "v" * 65},
        {"profiles": ["\x00"]},
        {"service": "a b"},
        {"instance": ""},
        {"kind": "toaster"},
        {"state": "asleep"},
        {"capacity": "many"},
    ],
)
def test_a_heartbeat_that_cant_be_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(UnreadableMessageError):
        decode_heartbeat(json.dumps(HEARTBEAT | changes).encode())


def test_texts_are_cut_to_their_columns() -> None:
    [result] = decode_results(json.dumps(RESULT | {"errorMessage": "e" * 5000, "errorCode": "c\x00" * 100}).encode())
    assert isinstance(result, ResultMessage)
    assert result.error_message is not None
    assert len(result.error_message) == 1024
    assert result.error_code is not None
    assert len(result.error_code) == 64
    assert "\x00" not in result.error_code


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)


@given(body=st.binary(max_size=200))
def test_bytes_are_read_or_refused(body: bytes) -> None:
    for decode in (decode_command, decode_results, decode_heartbeat):
        with contextlib.suppress(UnreadableMessageError):
            decode(body)


@given(field=st.sampled_from(sorted(COMMAND | RESULT | HEARTBEAT | {"operation": 1, "profiles": 1})), value=JSON)
def test_one_field_of_any_kind_is_read_or_refused(field: str, value: Any) -> None:
    for decode, sound in ((decode_command, COMMAND), (decode_results, RESULT), (decode_heartbeat, HEARTBEAT)):
        try:
            read = decode(msgspec.json.encode(sound | {field: value}))
        except UnreadableMessageError:
            continue
        if isinstance(read, ResultMessage):
            assert decode_results(encode(read)) == [read]
