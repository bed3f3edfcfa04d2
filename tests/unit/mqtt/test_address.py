import pytest

from laneway_shared.errors import SettingsError
from laneway_shared.mqtt import MqttAddress, MqttSettings, parse_address
from laneway_shared.settings import load


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("mqtt://broker", MqttAddress(host="broker", port=1883)),
        ("mqtt://broker:99/", MqttAddress(host="broker", port=99)),
        ("mqtts://u:p%40ss@[::1]", MqttAddress(host="::1", port=8883, username="u", password="p@ss", tls=True)),
    ],
)
def test_urls(url: str, address: MqttAddress) -> None:
    assert parse_address(url) == address


@pytest.mark.parametrize(
    "url", ["", "broker", "http://u:hush@h", "mqtt://", "mqtt://u:hush@h:x", "mqtt://h:70000", "mqtt://u:hu/sh@h"]
)
def test_what_is_no_url_is_told_without_the_password(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="MQTT URL") as caught:
        parse_address(url)
    assert "hush" not in str(caught.value)
    if url:
        monkeypatch.setenv("LANEWAY_MQTT_URL", url)
        with pytest.raises(SettingsError) as refused:
            load(MqttSettings)
        assert "LANEWAY_MQTT_URL" in refused.value.message
        assert "hush" not in refused.value.message


def test_no_text_shows_the_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANEWAY_MQTT_URL", "mqtt://u:hush@h")
    monkeypatch.setenv("LANEWAY_PROFILES_DIR", "")
    settings = load(MqttSettings)
    assert settings.profiles_dir is None
    assert "hush" not in repr(settings) + repr(settings.mqtt_address) + str(settings.mqtt_address)
