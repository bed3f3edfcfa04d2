"""One holder at a time among many processes: the exclusive consumer of a queue to which nothing is sent."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import structlog
from aiormq.exceptions import ChannelAccessRefused

from laneway_shared.broker.link import Link
from laneway_shared.broker.wire import WiredConnection

log = structlog.get_logger(__name__)

RETRY_S = 0.5


class Claim:
    """Tries to hold `queue` for as long as `run` runs; `held` says whether it does.

    The queue (durable, classic: a quorum queue refuses exclusive consumers on 3.10) is declared here.
    RabbitMQ gives the claim to the next one when the holder's connection ends, also by a missed AMQP heartbeat.
    """

    def __init__(self, url: str, name: str, queue: str) -> None:
        self._link = Link(url, name)
        self._queue = queue
        self.held = asyncio.Event()
        self._lost = asyncio.Event()

    async def run(self) -> None:
        """Hold it or wait for it until cancelled.

        Raises:
            TopologyMismatchError: the queue exists with other arguments.
        """
        await self._link.run(self._serve)

    async def while_held(self, work: Callable[[], Awaitable[None]]) -> None:
        """Wait for the claim and run `work` under it; `work` is cancelled at once when the claim is lost."""
        await self.held.wait()
        lost = self._lost
        tasks = [asyncio.ensure_future(work()), asyncio.ensure_future(lost.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if not tasks[0].cancelled():
            tasks[0].result()

    async def _serve(self, connection: WiredConnection) -> None:
        waiting = False
        while True:
            try:
                await self._hold(connection)
            except ChannelAccessRefused:
                if not waiting:
                    log.info("claim.waiting", queue=self._queue, reason="another process holds it")
                waiting = True
                await asyncio.sleep(RETRY_S)
            else:
                return

    async def _hold(self, connection: WiredConnection) -> None:
        channel = await connection.channel(publisher_confirms=False)
        queue = await channel.declare_queue(self._queue, durable=True)
        cancelled = asyncio.Event()
        underlay = await channel.get_underlay_channel()
        underlay.on_consumer_cancel_callbacks.add(lambda _frame: cancelled.set())
        await queue.consume(_surprise, exclusive=True, no_ack=True)
        self._lost = asyncio.Event()
        self.held.set()
        log.info("claim.held", queue=self._queue)
        ends = [asyncio.ensure_future(channel.closed()), asyncio.ensure_future(cancelled.wait())]
        try:
            done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for end in done:
                end.result()
        finally:
            self.held.clear()
            self._lost.set()
            log.info("claim.ended", queue=self._queue)
            for end in ends:
                end.cancel()
            await asyncio.gather(*ends, return_exceptions=True)


async def _surprise(_message: Any) -> None:
    log.warning("claim.message", advice="nothing should be sent to a claim's queue")
