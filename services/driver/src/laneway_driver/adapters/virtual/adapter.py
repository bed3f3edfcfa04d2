"""The adapter of virtual devices."""

import asyncio
from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from laneway_driver.adapters.virtual.behaviour import Behaviour, behaviour_of
from laneway_driver.adapters.virtual.journal import Journal
from laneway_driver.port import AdapterContext, Call, Done, NotSent, Outcome, Refused
from laneway_shared.messages import CommandType, Target
from laneway_shared.settings import load


class VirtualSettings(BaseSettings):
    """Read from the environment (`LANEWAY_VIRTUAL_…`)."""

    model_config = SettingsConfigDict(env_prefix="LANEWAY_VIRTUAL_", frozen=True, extra="ignore", env_ignore_empty=True)

    journal: Path | None = Field(
        None, description="File to which executions are appended as JSON lines; none: no file."
    )


class VirtualAdapter:
    """Holds the last written value of each point; behaves as `target.address` says (`Behaviour`)."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._values: dict[tuple[int, str, str], str] = {}  # tenant, device, point

    async def start(self) -> None:
        """Open the journal."""
        self._journal.open()

    async def stop(self) -> None:
        """Close the journal."""
        self._journal.close()

    def health(self) -> str | None:
        """Always well."""
        return None

    async def read(self, target: Target, call: Call) -> Outcome:
        """The value written last, or the one the address gives to begin with."""
        return await self._do(CommandType.READ, target, None, call)

    async def write(self, target: Target, value: str, call: Call) -> Outcome:
        """Keep the value."""
        return await self._do(CommandType.WRITE, target, value, call)

    async def _do(self, kind: CommandType, target: Target, value: str | None, call: Call) -> Outcome:
        try:
            behaviour = behaviour_of(target.address)
        except ValueError as error:
            return Refused("ADDRESS_INVALID", f"the device's address can't be used: {error}")
        fault = await self._fault(behaviour, call)
        if fault is not None:
            return fault
        late = call.too_late()
        if late is not None:
            return late
        if behaviour.latency_ms > 0:
            await asyncio.sleep(behaviour.latency_ms / 1000)
        if asyncio.get_running_loop().time() >= call.deadline:  # the process stood still meanwhile
            return NotSent("CALL_TIMEOUT", "the call's time was over before the virtual device acted")
        self._journal.executed(kind, target, value, call)
        place = (call.tenant_id, target.device_sn, target.point)
        if value is not None:
            self._values[place] = value
        return Done(self._values.get(place, behaviour.initial))

    async def _fault(self, behaviour: Behaviour, call: Call) -> Outcome | None:
        if not behaviour.faulty(call.attempt):
            return None
        if behaviour.silent:
            await asyncio.Event().wait()
        if behaviour.refuse is not None:
            await asyncio.sleep(behaviour.latency_ms / 1000)
            return Refused(behaviour.refuse, "the virtual device refuses", behaviour.retryable)
        if behaviour.not_sent or behaviour.fail_first is not None:
            return NotSent("DEVICE_UNREACHABLE", "the virtual device can't be reached")
        return None


def factory(context: AdapterContext) -> VirtualAdapter:  # noqa: ARG001 - the port's signature
    """Build the adapter from the environment."""
    return VirtualAdapter(Journal(load(VirtualSettings).journal))
