from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from laneway_shared.messages import Target
from laneway_shared.profiles import CommandNotRenderableError, MqttCommand, Profile, load_profiles, render_command

COMMAND = "0190c3e2-0000-7000-8000-000000000001"


def rendered(profile: Profile, *, sn: str = "A100", value: str | None = "1", **more: Any) -> MqttCommand:
    target = Target(device_sn=sn, point=more.pop("point", "lock"), address=more.pop("address", {}))
    fields: dict[str, Any] = {
        "command_id": COMMAND,
        "attempt": 2,
        "tenant_id": 7,
        "op": "write",
        "valid_until": datetime(2030, 1, 1, tzinfo=UTC),
        "valid_for_s": 9.9,
    }
    return render_command(profile, target, value=value, **(fields | more))


@pytest.mark.parametrize(
    "name", ["+", "#", "A/B", "", "A" * 65, "A B", "A\x00", "$SYS", "Ä", "A\n"], ids=lambda name: repr(name[:4])
)
def test_a_name_that_would_change_the_topic_is_refused(lock: Profile, changed: Any, name: str) -> None:
    with pytest.raises(CommandNotRenderableError, match="may not stand in a topic"):
        rendered(lock, sn=name)
    with pytest.raises(CommandNotRenderableError):
        rendered(changed(command={"topic": "{model}/{point}"}), point=name, address={"model": "M"})


def test_the_model_comes_from_the_address(changed: Any) -> None:
    profile = changed(command={"topic": "{tenant}/{model}/{sn}/{op}"})
    assert rendered(profile, address={"model": "M-2"}).topic == "7/M-2/A100/write"
    with pytest.raises(CommandNotRenderableError, match="address has none"):
        rendered(profile)


def test_text_and_hex_payloads(changed: Any) -> None:
    assert rendered(changed(command={"codec": "text", "payload": "{{{point}={value}}}"})).payload == b"{lock=1}"
    assert rendered(changed(command={"codec": "text", "payload": "{value}"}), value=None).payload == b""
    hexed = changed(command={"codec": "hex", "payload": "A0 {value}"})
    assert rendered(hexed, value="ff").payload == b"\xa0\xff"
    with pytest.raises(CommandNotRenderableError, match="hex digits"):
        rendered(hexed, value="open")


def test_numbers_and_null_keep_their_kind(changed: Any) -> None:
    payload = {"n": ["{attempt}", "{tenant}", "{validUntilMs}", 1.5, True, None], "v": "{value}", "t": "a{attempt}b"}
    made = rendered(changed(command={"payload": payload}), value=None)
    assert msgspec.json.decode(made.payload) == {"n": [2, 7, 1893456000000, 1.5, True, None], "v": None, "t": "a2b"}


@pytest.mark.parametrize(("left_s", "expiry_s"), [(9.9, 9), (1.2, 1), (0.3, 1), (-5.0, 1), (1e12, 2**32 - 1)])
def test_the_expiry_is_the_rest_of_the_window(lock: Profile, changed: Any, left_s: float, expiry_s: int) -> None:
    assert rendered(lock, valid_for_s=left_s).expiry_s == expiry_s
    assert rendered(changed(command={"message_expiry": False}), valid_for_s=left_s).expiry_s is None


def test_correlation_data_is_sent_where_the_device_copies_it(lock: Profile, changed: Any) -> None:
    correlation = {"source": "correlation_data", "pattern": "{commandId}/{attempt}", "path": None}
    profile = changed(ack={"correlation": lock.ack.correlation.model_dump() | correlation})
    assert rendered(profile).correlation_data == f"{COMMAND}/2".encode()
    assert rendered(lock).correlation_data is None


@given(st.text())
def test_a_value_stays_inside_its_json_string(value: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError:
        return  # never comes off the wire
    lock = load_profiles()["ydlink-lock"]
    assert msgspec.json.decode(rendered(lock, value=value).payload)["value"] == value
