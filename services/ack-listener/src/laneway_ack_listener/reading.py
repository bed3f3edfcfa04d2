"""What an MQTT message means: a result, or something to set aside."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import aiomqtt
import msgspec

from laneway_shared.errors import UnreadableMessageError
from laneway_shared.messages import ResultMessage
from laneway_shared.profiles import Profile, covers, parse_ack


@dataclass(frozen=True, kw_only=True)
class SetAside:
    """A message that is no answer, as it came, and why it isn't."""

    topic: str
    payload: bytes
    reason: str


class AnswerReader:
    """Reads answers by the profiles whose topics fit."""

    def __init__(self, profiles: Mapping[str, Profile], *, instance: str) -> None:
        self._profiles = list(profiles.values())
        self._instance = instance

    @property
    def filters(self) -> dict[str, int]:
        """The topic filters to subscribe to, each with the QoS that is asked for."""
        filters: dict[str, int] = {}
        for profile in self._profiles:
            filters[profile.ack.topic] = max(profile.ack.qos, filters.get(profile.ack.topic, 0))
        return filters

    def read(self, message: aiomqtt.Message) -> ResultMessage | SetAside:
        """The first profile that can read it wins; profiles may share a topic."""
        topic = str(message.topic)
        payload = message.payload
        correlation_data = getattr(message.properties, "CorrelationData", None)
        reasons: list[str] = []
        for profile in self._profiles:
            if not covers(profile.ack.topic, topic):
                continue
            try:
                result = parse_ack(profile, topic, payload, correlation_data)
            except UnreadableMessageError as error:
                reasons.append(f"{profile.name}: {error.message}")
            else:
                return msgspec.structs.replace(result, instance=self._instance, finished_at=datetime.now(UTC))
        return SetAside(topic=topic, payload=payload, reason="; ".join(reasons) or "no profile has this topic")
