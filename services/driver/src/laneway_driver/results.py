"""The way back: results are sent together as they come, confirmed, and only then deliveries are acked."""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from laneway_driver.broker_port import Deliverable
from laneway_shared import failpoints
from laneway_shared.broker import Outcome, Outgoing, Publishing
from laneway_shared.messages import ResultMessage, encode
from laneway_shared.topology import Topology

log = structlog.get_logger(__name__)
MOST_TOGETHER = 200
"""Results in one message at most."""
MOST_KEPT = 20_000
"""Results kept while RabbitMQ is away at most; more can't come, deliveries stop with it."""
RETRY_S = 0.2


@dataclass(slots=True, eq=False)
class _Waiting:
    command_id: str | None
    body: bytes
    delivery: Deliverable | None = None  # acked once the result is confirmed
    announced: asyncio.Future[bool] | None = None  # a result that is sent once, whatever becomes of it


class ResultSender:
    """Sends what waits as one message; what isn't confirmed is sent again. One `run` per process."""

    def __init__(self, publisher: Publishing, topology: Topology, service: str) -> None:
        self._publisher = publisher
        self._exchange = topology.result_exchange
        self._routing_key = topology.result_key(service)
        self._waiting: deque[_Waiting] = deque()
        self._arrived = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self.acks = OrderedAcks()

    def send(self, result: ResultMessage, delivery: Deliverable | None = None) -> None:
        """Send it until it is confirmed, then ack the delivery.

        Raises:
            TypeError, ValueError: it can't be put into JSON; nothing is sent.
        """
        body = encode(result)
        if len(self._waiting) >= MOST_KEPT:
            dropped = self._waiting.popleft()
            log.error("result.dropped", commandId=dropped.command_id, reason="too many wait for RabbitMQ")
            if dropped.announced:
                _tell(dropped.announced, confirmed=False)
        self._put(_Waiting(result.command_id, body, delivery))

    async def announce(self, result: ResultMessage) -> bool:
        """Send it once; whether RabbitMQ confirmed it. False says nothing about whether it arrived."""
        announced: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._put(_Waiting(result.command_id, encode(result), announced=announced))
        return await announced

    async def run(self) -> None:
        """Send until cancelled."""
        while True:
            await self._arrived.wait()
            batch = self._take()
            confirmed = await self._send(batch) if batch else True
            if not self._waiting:
                self._arrived.clear()
                self._idle.set()
            if not confirmed:
                await asyncio.sleep(RETRY_S)

    async def flush(self, timeout_s: float) -> int:
        """Wait until everything is sent and acked; the number of results that aren't, after `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return max(len(self._waiting), 1)
        return 0

    def _put(self, waiting: _Waiting) -> None:
        self._waiting.append(waiting)
        self._arrived.set()
        self._idle.clear()

    def _take(self) -> list[_Waiting]:
        batch: list[_Waiting] = []
        while self._waiting and len(batch) < MOST_TOGETHER:
            waiting = self._waiting.popleft()
            if waiting.announced is None or not waiting.announced.done():  # done: nobody waits for it any more
                batch.append(waiting)
        return batch

    async def _send(self, batch: list[_Waiting]) -> bool:
        alone = len(batch) == 1
        message = Outgoing(
            exchange=self._exchange,
            routing_key=self._routing_key,
            body=batch[0].body if alone else b"[" + b",".join(waiting.body for waiting in batch) + b"]",
            correlation_id=batch[0].command_id if alone else None,
        )
        [outcome] = await self._publisher.publish([message])
        confirmed = outcome is Outcome.CONFIRMED
        for waiting in batch:
            if waiting.announced is not None:
                _tell(waiting.announced, confirmed=confirmed)
        deliveries = [waiting.delivery for waiting in batch if waiting.delivery is not None]
        if confirmed and deliveries:
            failpoints.hit("driver.published")
            await self.acks.ack(deliveries)
            failpoints.hit("driver.acked")
        if not confirmed:
            self._waiting.extendleft(reversed(batch))  # announcements among them are told, and left out next time
            log.warning("result.unconfirmed", outcome=outcome.value, waiting=len(self._waiting))
        return confirmed


def _tell(announced: asyncio.Future[bool], *, confirmed: bool) -> None:
    if not announced.done():
        announced.set_result(confirmed)


class OrderedAcks:
    """Acks as many deliveries as possible with one frame: the oldest in a row, the others one by one."""

    def __init__(self) -> None:
        self._open: deque[Deliverable] = deque()  # in the order of delivery

    def took(self, delivery: Deliverable) -> None:
        """Tell of each delivery, in order, before it is worked on."""
        self._open.append(delivery)

    async def ack(self, deliveries: Sequence[Deliverable]) -> None:
        """Take these off the queue. Those of a lost connection come again, and are known then."""
        due = {id(delivery): delivery for delivery in deliveries if not delivery.lost and not delivery.answered}
        last: Deliverable | None = None
        while self._open:
            oldest = self._open[0]
            if due.pop(id(oldest), None) is not None:
                last = oldest
                oldest.answered = True
            elif not (oldest.answered or oldest.lost):
                break
            self._open.popleft()
        if last is not None:
            await last.ack(multiple=True)
        if due:
            await asyncio.gather(*(delivery.ack() for delivery in due.values()))
