"""Sending a batch on to RabbitMQ, until all of it is confirmed."""

import asyncio
from collections.abc import Sequence

import structlog

from laneway_ack_listener.reading import SetAside
from laneway_shared.broker import Outcome, Outgoing, Publishing
from laneway_shared.errors import cut
from laneway_shared.messages import ResultMessage, encode
from laneway_shared.topology import Topology

log = structlog.get_logger(__name__)

RETRY_FIRST_S = 0.1
RETRY_MOST_S = 2.0
DEAD_BODY_LIMIT = 256 * 1024  # bytes; RabbitMQ refuses very long messages, and a refusal would be tried for ever
HEADER_LIMIT = 1024  # characters; a topic may have 65,535 bytes, a frame of headers not much more


class Forwarder:
    """Publishes results as one array, and what can't be read to the dead exchange as it came."""

    def __init__(self, publisher: Publishing, topology: Topology, service: str) -> None:
        self._publisher = publisher
        self._topology = topology
        self._key = topology.result_key(service)

    async def forward(self, read: Sequence[ResultMessage | SetAside]) -> None:
        """Return when RabbitMQ has all of it; until then try again, for ever.

        A publish of unknown outcome is repeated: a result that comes twice is evidence the second time.
        """
        waiting = self._outgoing(read)
        delay_s = RETRY_FIRST_S
        while True:
            outcomes = await self._publisher.publish(waiting)
            missed = [(m, o) for m, o in zip(waiting, outcomes, strict=True) if o is not Outcome.CONFIRMED]
            if not missed:
                return
            waiting = [message for message, _ in missed]
            log.warning("results.waiting", answers=len(read), outcome=missed[0][1].value, exchange=waiting[0].exchange)
            await asyncio.sleep(delay_s)
            delay_s = min(delay_s * 2, RETRY_MOST_S)

    def _outgoing(self, read: Sequence[ResultMessage | SetAside]) -> list[Outgoing]:
        results = [member for member in read if isinstance(member, ResultMessage)]
        outgoing: list[Outgoing] = []
        if results:
            outgoing.append(
                Outgoing(
                    exchange=self._topology.result_exchange,
                    routing_key=self._key,
                    body=encode(results),
                    correlation_id=results[0].command_id if len(results) == 1 else None,
                )
            )
        outgoing += [self._dead(member) for member in read if isinstance(member, SetAside)]
        return outgoing

    def _dead(self, aside: SetAside) -> Outgoing:
        reason = cut(aside.reason, HEADER_LIMIT) or ""
        if len(aside.payload) > DEAD_BODY_LIMIT:
            reason = f"{reason} (cut: {len(aside.payload)} bytes)"
        log.warning("answer.unreadable", topic=aside.topic[:HEADER_LIMIT], reason=reason)
        return Outgoing(
            exchange=self._topology.dead_exchange,
            routing_key=self._key,
            body=aside.payload[:DEAD_BODY_LIMIT],
            headers={"x-laneway-reason": reason, "x-laneway-queue": cut(f"mqtt:{aside.topic}", HEADER_LIMIT) or ""},
        )
