"""Devices on MQTT, described by profiles. Their answers come back through the ack-listener."""

from laneway_driver.adapters.mqtt.adapter import MqttAdapter
from laneway_driver.port import AdapterContext, DeviceAdapter
from laneway_shared.mqtt import MqttSettings
from laneway_shared.profiles import load_profiles
from laneway_shared.settings import load

__all__ = ["MqttAdapter", "factory"]


def factory(context: AdapterContext) -> DeviceAdapter:
    """The adapter, by the settings of the environment.

    Raises:
        SettingsError: a setting can't be used.
        ProfileError: a profile isn't valid.
    """
    settings = load(MqttSettings)
    return MqttAdapter(settings, load_profiles(settings.profiles_dir), client_id=f"laneway-driver-{context.instance}")
