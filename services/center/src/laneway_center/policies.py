"""How a lane behaves, and who said so: the most specific level that says something decides.

The levels are, from the most specific: the command, its point, the lane, the device, the driver, the center's
settings. The store hands in what the four levels in the middle say, as one array per policy (`intake_scope`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

LEVELS = ("point", "lane", "device", "driver")
"""The order of the arrays."""

POLICIES = ("gate", "retry", "review_policy", "max_attempts", "ack_timeout_ms", "depth_limit", "on_full")


@dataclass(frozen=True)
class Resolved:
    """A policy's value, and the level that set it: command, one of LEVELS, safety, or center."""

    value: Any
    set_by: str


def resolve(
    said: Mapping[str, Sequence[Any]], *, defaults: Mapping[str, Any], command: Mapping[str, Any], unsafe: bool
) -> dict[str, Resolved]:
    """All policies of a command, or (with nothing said by `command`) of a lane.

    Args:
        said: by policy, what point, lane, device and driver say (None: nothing).
        defaults: the center's settings, by policy.
        command: what the command itself says, by policy (None or absent: nothing).
        unsafe: whether it is unsafe to repeat: then the lane stays closed until the answer, unless command or point
            say otherwise.
    """
    found = {}
    for name in POLICIES:
        pairs = [("command", command.get(name)), *zip(LEVELS, said[name], strict=True)]
        if name == "gate" and unsafe:
            pairs[2:] = [("safety", "ack")]
        level, value = next(((level, value) for level, value in pairs if value is not None), ("center", defaults[name]))
        found[name] = Resolved(value, level)
    return found
