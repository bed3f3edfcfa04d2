import pytest
from pydantic_settings import BaseSettings

from laneway_ack_listener.settings import AckListenerSettings
from laneway_center.settings import CenterSettings
from laneway_driver.adapters.virtual.adapter import VirtualSettings
from laneway_driver.settings import DriverSettings
from laneway_shared.errors import SettingsError
from laneway_shared.mqtt import MqttSettings
from laneway_shared.settings import load
from laneway_simulator.settings import SimulatorSettings

KINDS: list[type[BaseSettings]] = [
    AckListenerSettings,
    CenterSettings,
    DriverSettings,
    MqttSettings,
    SimulatorSettings,
    VirtualSettings,
]


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_variable_is_as_good_as_none(kind: type[BaseSettings], monkeypatch: pytest.MonkeyPatch) -> None:
    prefix = kind.model_config.get("env_prefix", "")
    required = {name: "some" for name, field in kind.model_fields.items() if field.is_required()}
    for name in kind.model_fields:
        monkeypatch.delenv(f"{prefix}{name}".upper(), raising=False)
    without = load(kind, **required)
    for name in kind.model_fields:
        monkeypatch.setenv(f"{prefix}{name}".upper(), "")
    assert load(kind, **required) == without


def test_what_is_required_may_not_be_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANEWAY_SERVICE", "")
    with pytest.raises(SettingsError, match=r"^LANEWAY_SERVICE: "):
        load(DriverSettings)


@pytest.mark.parametrize("kind", KINDS)
def test_every_setting_is_explained(kind: type[BaseSettings]) -> None:
    assert not [name for name, field in kind.model_fields.items() if not field.description]
