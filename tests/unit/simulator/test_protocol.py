import contextlib
import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laneway_shared.lifecycle import ResultKind
from laneway_shared.messages import Target
from laneway_shared.profiles import Profile, load_profiles, parse_ack, render_command
from laneway_simulator.protocol import (
    Command,
    UnfitCommandError,
    complete_ack,
    encode_ack,
    parse_command,
    split_msg_id,
)
from laneway_simulator.topics import PROFILE, Topics, lock_topics

COMMAND_ID = "0190c3e2-0000-7000-8000-000000000001"


@pytest.fixture(scope="module")
def profile() -> Profile:
    return load_profiles()[PROFILE]


def test_the_lock_reads_what_the_profile_writes(profile: Profile) -> None:
    until = datetime(2030, 1, 1, tzinfo=UTC)
    topics = Topics.of(profile)
    for op, value in (("write", "1"), ("write", "é\n"), ("read", None)):
        made = render_command(
            profile,
            Target(device_sn="A100", point="lock", profile=PROFILE),
            command_id=COMMAND_ID,
            attempt=3,
            tenant_id=1,
            op=op,
            value=value,
            valid_until=until,
            valid_for_s=10,
        )

        assert topics.sn_of(made.topic) == "A100"
        assert parse_command(made.payload) == Command(f"{COMMAND_ID}.3", "lock", op, value, until.timestamp() * 1000)


@pytest.mark.parametrize(
    ("word", "status"),
    [
        ("ok", ResultKind.SUCCESS),
        ("refused", ResultKind.FAILED),
        ("busy", ResultKind.FAILED),
        ("invalid", ResultKind.FAILED),
    ],
)
def test_the_profile_reads_what_the_lock_answers(profile: Profile, word: str, status: ResultKind) -> None:
    payload = encode_ack("A100", f"{COMMAND_ID}.3", word, "1", "why")

    result = parse_ack(profile, Topics.of(profile).ack_topic("A100"), payload)

    assert (result.status, result.command_id, result.attempt) == (status, COMMAND_ID, 3)
    assert (result.response_value, result.error_message) == ("1", "why")


def test_topics_are_those_of_the_profile() -> None:
    topics = lock_topics()

    assert (topics.command_filter, topics.command_qos) == ("ydlink/+/down", 0)
    assert (topics.ack_topic("A100"), topics.ack_qos) == ("ydlink/A100/up/ack", 1)


@pytest.mark.parametrize(
    ("payload", "reason", "has_id"),
    [
        (b"", "not JSON", False),
        (b"\xff\x00rubbish", "not JSON", False),
        (b"[" * 100_000, "not JSON", False),
        (b"[1]", "not a JSON object", False),
        (b"{}", "msgId", False),
        (b'{"msgId":7}', "msgId", False),
        (b'{"msgId":""}', "msgId", False),
        (json.dumps({"msgId": "x" * 129}).encode(), "msgId", False),
        (b'{"msgId":"a.1"}', "cmd", True),
        (b'{"msgId":"a.1","cmd":"lock","op":"erase"}', "op must be", True),
        (b'{"msgId":"a.1","cmd":"","op":"read"}', "cmd must", True),
        (b'{"msgId":"a.1","cmd":"lock","op":"write","value":null}', "needs a value", True),
        (b'{"msgId":"a.1","cmd":"lock","op":"write","value":{}}', "value", True),
        (b'{"msgId":"a.1","cmd":"lock","op":"read","validUntil":"soon"}', "validUntil", True),
        (json.dumps({"msgId": "a.1", "cmd": "p", "op": "write", "value": "x" * 4097}).encode(), "at most", True),
    ],
)
def test_rubbish_has_a_reason(payload: bytes, reason: str, has_id: bool) -> None:
    with pytest.raises(UnfitCommandError, match=reason) as caught:
        parse_command(payload)
    assert (caught.value.msg_id is not None) is has_id


@given(st.binary(max_size=200))
def test_any_bytes_are_a_command_or_have_a_reason(payload: bytes) -> None:
    with contextlib.suppress(UnfitCommandError):
        assert parse_command(payload).msg_id


def test_numbers_are_taken_as_text() -> None:
    assert parse_command(b'{"msgId":"a.1","cmd":"level","op":"write","value":42}').value == "42"


def test_a_message_id_names_command_and_attempt() -> None:
    assert split_msg_id(f"{COMMAND_ID}.12") == (COMMAND_ID, 12)
    assert split_msg_id("17") == (None, None)
    assert split_msg_id(None) == (None, None)


def test_an_answer_by_hand_gets_what_it_lacks() -> None:
    assert json.loads(complete_ack("A100", b'{"msgId":"a.1"}')) == {
        "msgId": "a.1",
        "sn": "A100",
        "result": "ok",
        "value": None,
        "reason": None,
    }
    assert json.loads(complete_ack("A100", b'{"msgId":"a.1","result":"working","x":1}'))["result"] == "working"
    for raw in (b"\x00rubbish", b"[]", b'{"result":"ok"}', b""):
        assert complete_ack("A100", raw) == raw
