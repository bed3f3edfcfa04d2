"""From a call to a publish, and what the publish says about the call."""

import asyncio
from collections.abc import Mapping

from laneway_driver.adapters.mqtt.sender import Sender
from laneway_driver.port import Call, NotSent, Outcome, Refused, Transmitted
from laneway_shared.messages import Target
from laneway_shared.mqtt import MqttSettings
from laneway_shared.profiles import CommandNotRenderableError, Profile, render_command


class MqttAdapter:
    """A `DeviceAdapter`: one connection for all devices; a publish is TRANSMITTED, never SUCCESS."""

    def __init__(self, settings: MqttSettings, profiles: Mapping[str, Profile], *, client_id: str) -> None:
        self._profiles = profiles
        self._sender = Sender(settings, client_id=client_id)
        self._keeper: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to connect, and return; calls before that are NotSent."""
        self._keeper = asyncio.create_task(self._sender.run(), name="mqtt connection")

    async def stop(self) -> None:
        """Disconnect."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.cancel()
            await asyncio.wait([keeper])
            if not keeper.cancelled():
                keeper.result()

    async def read(self, target: Target, call: Call) -> Outcome:
        """Ask for the value; it comes with the device's answer."""
        return await self._command(target, "read", None, call)

    async def write(self, target: Target, value: str, call: Call) -> Outcome:
        """Send the value."""
        return await self._command(target, "write", value, call)

    def health(self) -> str | None:
        """What is wrong, or None."""
        if self._keeper is None or self._keeper.done():
            return "the MQTT adapter does not run"
        return None if self._sender.connected else "not connected to MQTT"

    async def _command(self, target: Target, op: str, value: str | None, call: Call) -> Outcome:
        profile = self._profiles.get(target.profile or "")
        if profile is None:
            # another instance may have it: a newer release, or another LANEWAY_PROFILES_DIR
            return NotSent("PROFILE_UNKNOWN", f"no profile {target.profile!r} here; add it to LANEWAY_PROFILES_DIR")
        now = asyncio.get_running_loop().time()
        try:
            message = render_command(
                profile,
                target,
                command_id=call.command_id,
                attempt=call.attempt,
                tenant_id=call.tenant_id,
                op=op,
                value=value,
                valid_until=call.start_by,
                valid_for_s=min(call.begin_by, call.deadline) - now,
            )
        except CommandNotRenderableError as error:
            return Refused(error.code, error.message)
        trouble = await self._sender.send(message, call)
        return trouble or Transmitted(profile.ack.timeout_s)
