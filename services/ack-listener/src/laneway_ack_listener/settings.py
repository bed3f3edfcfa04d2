"""Settings of the ack-listener. Read from the environment (`LANEWAY_…`), built once in `main`."""

from pydantic import Field

from laneway_shared.mqtt import MqttSettings
from laneway_shared.settings import ServiceSettings


class AckListenerSettings(ServiceSettings, MqttSettings):
    """Whose answers it reads, and how many at once."""

    service: str = Field(
        "mqtt",
        pattern=r"^[A-Za-z0-9_-]{1,64}$",
        description="Name of the service whose devices answer; one ack-listener per name is active.",
    )
    profiles: str = Field("", description="Device profiles to listen for, separated by commas; empty: all.")
    ack_receive_maximum: int = Field(
        1000, ge=1, le=65_535, description="Answers that may be in hand at once, received and not acknowledged."
    )
    ack_batch: int = Field(200, ge=1, le=10_000, description="Answers that are sent on in one message at most.")
    ack_session_s: int = Field(
        86_400, ge=60, le=4_294_967_294, description="Seconds for which MQTT keeps answers while nobody listens."
    )
    drain_s: float = Field(5.0, ge=0, description="Seconds that the answers in hand get to be sent on at a stop.")

    @property
    def profile_names(self) -> list[str]:
        """The profiles by name; empty means all."""
        return [name.strip() for name in self.profiles.split(",") if name.strip()]
