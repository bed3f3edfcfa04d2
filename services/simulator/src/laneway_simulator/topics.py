"""A profile's topics, seen from the device: where it listens and where it answers."""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from laneway_shared.errors import ProfileError
from laneway_shared.profiles import Profile, choose, load_profiles

PROFILE = "ydlink-lock"
_SN = "{sn}"


@dataclass(frozen=True, kw_only=True)
class Topics:
    """Topics as segments; `sn_at` and `ack_sn_at` are the places of the device's name in them."""

    command: tuple[str, ...]
    sn_at: int
    command_qos: int
    ack: tuple[str, ...]
    ack_sn_at: int
    ack_qos: int

    @classmethod
    def of(cls, profile: Profile) -> Self:
        """The topics of a profile.

        Raises:
            ProfileError: the device's name is no segment of its own in them, or they hold something besides.
        """
        command = tuple(profile.command.topic.split("/"))
        ack = tuple(profile.ack.topic.split("/"))
        ack_sn_at = profile.ack.device_sn.topic_segment
        others = [segment for segment in command if "{" in segment and segment != _SN]
        if command.count(_SN) != 1 or others or ack_sn_at is None or ack.count("+") != 1 or ack[ack_sn_at] != "+":
            raise ProfileError(f"{profile.name}: the simulator needs the device's name, and only it, in both topics")
        return cls(
            command=command,
            sn_at=command.index(_SN),
            command_qos=profile.command.qos,
            ack=ack,
            ack_sn_at=ack_sn_at,
            ack_qos=profile.ack.qos,
        )

    @property
    def command_filter(self) -> str:
        """Covers the commands to every device."""
        return "/".join(_put(self.command, self.sn_at, "+"))

    def sn_of(self, topic: str) -> str:
        """The device's name in the topic of a command."""
        return topic.split("/")[self.sn_at]

    def ack_topic(self, sn: str) -> str:
        """Where the device answers."""
        return "/".join(_put(self.ack, self.ack_sn_at, sn))


def lock_topics(profiles_dir: Path | None = None) -> Topics:
    """The topics of the lock this simulator plays; `profiles_dir` may have another profile of its name.

    Raises:
        ProfileError: its profile isn't there or can't be played.
    """
    profiles = load_profiles(profiles_dir)
    return Topics.of(choose(profiles, [PROFILE])[PROFILE])


def _put(segments: tuple[str, ...], place: int, segment: str) -> tuple[str, ...]:
    return (*segments[:place], segment, *segments[place + 1 :])
