"""How a virtual device behaves: what its target's `address` says."""

from typing import Any

import msgspec


class Behaviour(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    """Read from `target.address`; unknown fields are ignored."""

    latency_ms: float = 0.0  # before the device acts
    refuse: str | None = None  # it says no, with this code
    retryable: bool = False  # whether that no may become a yes
    silent: bool = False  # it never answers, and does nothing
    not_sent: bool = False  # it can't be reached
    fail_first: int | None = None  # the fault (default: not_sent) hits attempts 1..n of each command only
    initial: str | None = None  # what is read before the first write

    def faulty(self, attempt: int) -> bool:
        """Whether this attempt meets the fault."""
        return self.fail_first is None or attempt <= self.fail_first


def behaviour_of(address: dict[str, Any]) -> Behaviour:
    """The behaviour that an address describes.

    Raises:
        ValueError: a field has a value of the wrong kind; says which.
    """
    return msgspec.convert(address, Behaviour)
