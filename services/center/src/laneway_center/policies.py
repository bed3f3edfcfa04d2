"""How a lane behaves, and who said so: the most specific level that says something decides.

The levels are, from the most specific: the command, its point, the lane, the device, the driver, the center's
settings. The store hands in what the four levels in the middle say, as one array per policy (`intake_scope`).
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

LEVELS = ("point", "lane", "device", "driver")
"""The order of the arrays."""

POLICIES = ("gate", "retry", "review_policy", "max_attempts", "ack_timeout_ms", "depth_limit", "on_full")


class Resolved(NamedTuple):
    """A policy's value, and the level that set it: command, one of LEVELS, safety, or center."""

    value: Any
    set_by: str


def resolve(
    said: Mapping[Any, Sequence[Any]], *, defaults: Mapping[str, Any], command: Mapping[str, Any], unsafe: bool
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
        if (own := command.get(name)) is not None:
            found[name] = Resolved(own, "command")
        elif name == "gate" and unsafe:
            point = said[name][0]
            found[name] = Resolved("ack", "safety") if point is None else Resolved(point, "point")
        else:
            found[name] = _most_specific(said[name]) or Resolved(defaults[name], "center")
    return found


def _most_specific(values: Sequence[Any]) -> Resolved | None:
    for level, value in zip(LEVELS, values, strict=True):
        if value is not None:
            return Resolved(value, level)
    return None
