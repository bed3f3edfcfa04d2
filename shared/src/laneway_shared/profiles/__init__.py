"""Device profiles: a family of MQTT devices as one YAML file, whose examples are its tests."""

from laneway_shared.profiles.answers import parse_ack
from laneway_shared.profiles.examples import example_faults
from laneway_shared.profiles.loading import choose, load_profiles, parse_profile, shipped_profiles
from laneway_shared.profiles.model import Profile
from laneway_shared.profiles.rendering import CommandNotRenderableError, MqttCommand, render_command
from laneway_shared.profiles.topics import covers

__all__ = [
    "CommandNotRenderableError",
    "MqttCommand",
    "Profile",
    "choose",
    "covers",
    "example_faults",
    "load_profiles",
    "parse_ack",
    "parse_profile",
    "render_command",
    "shipped_profiles",
]
