"""The port of the driver: what an adapter for a device protocol offers, and the outcomes it can tell.

An adapter is a package with a `factory` registered under the entry point group `laneway.adapters`. It
holds no configuration of devices: all it needs to reach one stands in the command's `Target`. It raises
nothing for expected failures, it tells an `Outcome`. All adapters pass `tests/conformance/adapter_contract.py`.
"""

import asyncio
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol, TypeAlias

from laneway_shared.messages import Target

ADAPTER_GROUP = "laneway.adapters"


@dataclass(frozen=True)
class Transmitted:
    """Handed to the transport; the device's answer comes another way."""

    ack_timeout: float | None = None  # seconds within which it is due; None: the center's setting


@dataclass(frozen=True)
class Accepted:
    """The platform took it and works on it; `operation` is what it is asked about later."""

    operation: dict[str, Any]


@dataclass(frozen=True)
class Done:
    """The device did it. `value` is what was read or what the device reported after a write."""

    value: str | None


@dataclass(frozen=True)
class Refused:
    """The device or platform said no, and did nothing."""

    code: str
    message: str
    retryable: bool = False  # whether it may say yes another time


@dataclass(frozen=True)
class NotSent:
    """Certainly nothing reached the device."""

    code: str
    message: str


@dataclass(frozen=True)
class Unknown:
    """It may or may not have had effect."""

    code: str
    message: str


Outcome: TypeAlias = Transmitted | Accepted | Done | Refused | NotSent | Unknown


@dataclass(frozen=True, kw_only=True)
class Call:
    """One attempt's call of a device, and the time it has."""

    tenant_id: int
    command_id: str
    attempt: int
    begin_by: float  # on `asyncio.get_running_loop().time()`: nothing that acts on the device begins later
    deadline: float  # on the same clock: by then the call is over
    start_by: datetime  # aware UTC, center's clock: for devices that can tell by it what is too old
    expire_at: datetime  # aware UTC, center's clock: the command's own deadline

    def too_late(self) -> NotSent | None:
        """What to tell instead of beginning now. An adapter asks as its last step before the one that acts.

        The driver has asked already, but a process may stand still for any time between two of its steps.
        """
        if asyncio.get_running_loop().time() < self.begin_by:
            return None
        return NotSent("START_WINDOW", "the start window passed before the device was reached")


@dataclass(frozen=True, kw_only=True)
class AdapterContext:
    """What an adapter is told about the process it runs in."""

    service: str  # name of the driver service
    instance: str  # name of this process, unique among running ones


class DeviceAdapter(Protocol):
    """One device protocol. Calls for different devices run at the same time, for one device one by one."""

    async def start(self) -> None:
        """Begin; connecting may go on in the background. Called once, before any call."""

    async def stop(self) -> None:
        """Let go of everything. Called once, after the last call."""

    async def read(self, target: Target, call: Call) -> Outcome:
        """Read the point. A call that is cancelled (its time is over) leaves nothing running."""

    async def write(self, target: Target, value: str, call: Call) -> Outcome:
        """Write `value` to the point, at most once. Cancellation as with `read`."""

    def health(self) -> str | None:
        """None when well, else one sentence that says what is wrong."""


class AdapterFactory(Protocol):
    """What the entry point names."""

    def __call__(self, context: AdapterContext) -> DeviceAdapter:
        """Build the adapter; its own settings come from the environment."""
