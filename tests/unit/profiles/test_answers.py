import contextlib
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from laneway_shared.errors import ERROR_TEXT_LIMIT, UnreadableMessageError
from laneway_shared.lifecycle import ResultKind
from laneway_shared.messages import VALUE_LIMIT, ResultMessage, decode_results, encode
from laneway_shared.profiles import Profile, load_profiles, parse_ack

COMMAND = "0190c3e2-0000-7000-8000-000000000001"
LOCK = load_profiles()["ydlink-lock"]
TOPIC = "ydlink/A100/up/ack"


def said(profile: Profile = LOCK, topic: str = TOPIC, **fields: Any) -> ResultMessage:
    body = {"msgId": f"{COMMAND}.1", "sn": "A100", "result": "ok", "value": "1", "reason": None} | fields
    return parse_ack(profile, topic, msgspec.json.encode(body))


def test_values_become_the_text_that_commands_are_written_in() -> None:
    values = {"1": "1", True: "true", 2.5: "2.5", None: None}
    for value, text in values.items():
        assert said(value=value).response_value == text
    assert said(value={"a": [1]}).response_value == '{"a":[1]}'


def test_long_texts_are_cut_and_a_nul_is_replaced() -> None:
    result = said(value="v" * 10_000, reason="\x00" + "r" * 10_000)
    assert len(result.response_value or "") == VALUE_LIMIT
    assert len(result.error_message or "") == ERROR_TEXT_LIMIT
    assert "\x00" not in (result.error_message or "")


@pytest.mark.parametrize(
    "echo",
    [None, 1, "", COMMAND, f"{COMMAND}.0", f"{COMMAND}.-1", f"{COMMAND}.1.1", f"x{COMMAND}.1", f"{COMMAND}.9999999999",
     f"{COMMAND}.1\n", f"{COMMAND}.\u0661"],  # a digit, in Arabic
)  # fmt: skip
def test_an_echo_that_names_no_attempt_is_unreadable(echo: object) -> None:
    with pytest.raises(UnreadableMessageError, match="the answer echoes"):
        said(msgId=echo)


def test_the_command_id_is_read_in_any_case() -> None:
    assert said(msgId=f"{COMMAND.upper()}.3").command_id == COMMAND


@pytest.mark.parametrize(
    ("topic", "reason"),
    [
        ("ydlink/A100/down", "is not one of"),
        ("ydlink//up/ack", "answers on the topic of"),
        ("ydlink/A100/up/ack/x", "is not one of"),
        ("$SYS/A100/up/ack", "is not one of"),
    ],
)
def test_other_topics_are_unreadable(topic: str, reason: str) -> None:
    with pytest.raises(UnreadableMessageError, match=reason):
        said(topic=topic)


def test_a_device_that_echoes_nothing_is_matched_by_its_lane(changed: Any) -> None:
    nothing = {"source": "none", "path": None, "pattern": None, "topic_segment": None}
    result = said(changed(ack={"correlation": nothing}), msgId=None)
    assert (result.command_id, result.attempt, result.device_sn, result.matched_by) == (None, None, "A100", "lane")


def test_an_id_in_the_topic_and_a_word_as_the_whole_payload(changed: Any) -> None:
    profile = changed(
        ack={
            "topic": "locks/+/acks/+",
            "codec": "text",
            "device_sn": {"topic_segment": 1, "payload_path": None},
            "correlation": {"source": "topic", "topic_segment": 3, "pattern": "{commandId}", "path": None},
            "outcome": {"path": None, "words": {"OK": {"status": "SUCCESS"}}},
            "value_path": None,
            "message_path": None,
        }
    )
    result = parse_ack(profile, f"locks/A100/acks/{COMMAND}", b"OK")
    assert (result.status, result.command_id, result.attempt) == (ResultKind.SUCCESS, COMMAND, None)
    with pytest.raises(UnreadableMessageError, match="not UTF-8"):
        parse_ack(profile, f"locks/A100/acks/{COMMAND}", b"\xff")


def test_correlation_data(lock: Profile, changed: Any) -> None:
    rules = {"source": "correlation_data", "pattern": "{commandId}.{attempt}", "path": None, "topic_segment": None}
    profile = changed(ack={"correlation": rules})
    body = b'{"sn":"A100","result":"ok"}'
    assert parse_ack(profile, TOPIC, body, f"{COMMAND}.4".encode()).attempt == 4
    for data in (None, b"", b"\xff\xfe", b"17"):
        with pytest.raises(UnreadableMessageError):
            parse_ack(profile, TOPIC, body, data)


_trees = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.just(f"{COMMAND}.1"),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.sampled_from(["msgId", "sn", "result"]), inner),
)
_answers = st.fixed_dictionaries(
    {},
    optional={
        "msgId": st.just(f"{COMMAND}.1") | _trees,
        "sn": st.just("A100") | _trees,
        "result": st.sampled_from([*LOCK.ack.outcome.words]) | _trees,
        "value": _trees,
        "reason": _trees,
    },
)


def _judge(topic: str, payload: bytes, data: bytes | None = None) -> None:
    with contextlib.suppress(UnreadableMessageError):
        result = parse_ack(LOCK, topic, payload, data)
        assert result.device_sn
        # whoever reads the result queue can read it
        (read,) = decode_results(encode(result))
        assert isinstance(read, ResultMessage)


@given(st.text(), st.binary(), st.none() | st.binary())
def test_no_bytes_raise_anything_but_unreadable(topic: str, payload: bytes, data: bytes | None) -> None:
    _judge(TOPIC, payload, data)
    _judge(topic, payload, data)


@given(_answers | _trees)
def test_no_json_raises_anything_but_unreadable(tree: object) -> None:
    import json  # noqa: PLC0415 - the one encoder that writes what others refuse: huge numbers, lone surrogates

    _judge(TOPIC, json.dumps(tree).encode(errors="surrogatepass"))


@given(st.integers(0, 5), st.sampled_from([b"[" * 50_000, b'{"a":' * 50_000, b"1" * 10_000, b"1e999", b'"\\ud800"']))
def test_hostile_json_raises_nothing_but_unreadable(spaces: int, payload: bytes) -> None:
    _judge(TOPIC, b" " * spaces + payload)
    _judge(TOPIC, b'{"msgId":"' + COMMAND.encode() + b'.1","sn":"A100","result":"ok","value":' + payload + b"}")
