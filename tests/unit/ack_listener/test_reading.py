import aiomqtt
import msgspec

from laneway_ack_listener.reading import AnswerReader, SetAside
from laneway_shared.messages import ResultMessage
from laneway_shared.profiles import Profile, load_profiles

COMMAND = "0190c3e2-0000-7000-8000-000000000001"
LOCK = load_profiles()["ydlink-lock"]


def answered(reader: AnswerReader, payload: bytes, topic: str = "ydlink/A100/up/ack") -> ResultMessage | SetAside:
    return reader.read(aiomqtt.Message(topic, payload, qos=1, retain=False, mid=1, properties=None))


def test_a_result_says_who_read_it_and_when() -> None:
    reader = AnswerReader({"ydlink-lock": LOCK}, instance="me")
    result = answered(reader, msgspec.json.encode({"msgId": f"{COMMAND}.1", "sn": "A100", "result": "ok"}))
    assert isinstance(result, ResultMessage)
    assert result.instance == "me"
    assert result.finished_at is not None
    assert result.device_sn == "A100"


def test_profiles_that_share_a_topic_each_get_their_turn() -> None:
    tree = LOCK.model_dump()
    tree["name"] = "other-lock"
    tree["ack"]["qos"] = 0
    tree["ack"]["outcome"]["words"] = {"done": {"status": "SUCCESS"}}
    reader = AnswerReader({"other-lock": Profile.model_validate(tree), "ydlink-lock": LOCK}, instance="me")
    assert reader.filters == {"ydlink/+/up/ack": 1}
    for word in ("done", "ok"):
        body = {"msgId": f"{COMMAND}.1", "sn": "A100", "result": word}
        assert isinstance(answered(reader, msgspec.json.encode(body)), ResultMessage)
    aside = answered(reader, b"rubbish")
    assert isinstance(aside, SetAside)
    assert "other-lock: not JSON" in aside.reason
    assert "ydlink-lock: not JSON" in aside.reason


def test_a_topic_of_no_profile_is_set_aside() -> None:
    aside = answered(AnswerReader({"ydlink-lock": LOCK}, instance="me"), b"{}", "elsewhere")
    assert aside == SetAside(topic="elsewhere", payload=b"{}", reason="no profile has this topic")
