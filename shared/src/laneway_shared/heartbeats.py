"""Telling the center that a process lives, and that it stops."""

import asyncio
from collections.abc import Callable

from laneway_shared.broker import Outcome, Outgoing, Publishing
from laneway_shared.messages import Heartbeat, encode
from laneway_shared.topology import Topology

CONFIRM_S = 2.0  # a heartbeat that is older says little
RETRY_FIRST_S = 0.2  # commands wait for the first heartbeat, and at the start the publisher may not be connected yet
RETRY_MOST_S = 1.0


class Pulse:
    """The heartbeats of one process; `compose` gives them by state, `online` or `stopping`."""

    def __init__(
        self, publisher: Publishing, topology: Topology, service: str, compose: Callable[[str], Heartbeat]
    ) -> None:
        self._publisher = publisher
        self._exchange = topology.state_exchange
        self._routing_key = topology.state_key(service)
        self._compose = compose
        self._told = False

    async def run(self, every_s: float, active: asyncio.Event) -> None:
        """Beat while `active` is set, at once and then every `every_s` seconds, until cancelled.

        One that isn't confirmed is followed by the next soon.
        """
        retry_s = RETRY_FIRST_S
        while True:
            await active.wait()
            self._told = True  # also one that isn't confirmed may have arrived
            if await self._send("online"):
                retry_s = RETRY_FIRST_S
                await asyncio.sleep(every_s)
            else:
                await asyncio.sleep(min(retry_s, every_s))
                retry_s = min(retry_s * 2, RETRY_MOST_S)

    async def stop(self) -> None:
        """Say that no more will come, if any came. Not while `run` runs."""
        if self._told:
            await self._send("stopping")

    async def _send(self, state: str) -> bool:
        message = Outgoing(
            exchange=self._exchange,
            routing_key=self._routing_key,
            body=encode(self._compose(state)),
            persistent=False,
        )
        [outcome] = await self._publisher.publish([message], timeout_s=CONFIRM_S)
        return outcome is Outcome.CONFIRMED
