"""Settings of whoever speaks MQTT by profiles."""

from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from laneway_shared.mqtt.address import MqttAddress, parse_address


class MqttSettings(BaseSettings):
    """The broker, and where profiles are. Read from the environment (`LANEWAY_…`)."""

    model_config = SettingsConfigDict(env_prefix="LANEWAY_", frozen=True, extra="ignore", env_ignore_empty=True)

    mqtt_url: str = Field(
        "mqtt://localhost:1883",
        description="Mosquitto, as mqtt:// or mqtts://[user:password@]host[:port].",
        repr=False,
    )
    mqtt_version: Literal["5", "3.1.1"] = Field("5", description="MQTT version; expiry of commands needs 5.")
    mqtt_keepalive_s: int = Field(5, ge=1, le=3600, description="Seconds of silence after which a ping is due.")
    profiles_dir: Path | None = Field(
        None, description="Folder with device profiles besides the shipped ones; a profile of the same name wins."
    )

    @field_validator("mqtt_url")
    @classmethod
    def _is_an_mqtt_url(cls, url: str) -> str:
        parse_address(url)
        return url

    @property
    def mqtt_address(self) -> MqttAddress:
        """The broker's address."""
        return parse_address(self.mqtt_url)
