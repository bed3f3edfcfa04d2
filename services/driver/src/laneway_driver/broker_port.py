"""The broker as the driver's parts see it; `laneway_shared.broker` fulfils it, tests stand in for it."""

from typing import Protocol


class Deliverable(Protocol):
    """A message as delivered."""

    answered: bool

    @property
    def body(self) -> bytes:
        """The raw body."""

    @property
    def redelivered(self) -> bool:
        """Whether RabbitMQ may have delivered it before."""

    @property
    def routing_key(self) -> str:
        """The key it was published with."""

    @property
    def lost(self) -> bool:
        """Whether the connection it came on is gone, so that it will be delivered again."""

    async def ack(self, *, multiple: bool = False) -> bool:
        """Take it (with `multiple`: and all before it) off the queue."""

    async def reject(self) -> bool:
        """Send it to the dead-letter exchange."""
