"""Composition root: builds the driver, runs it until a signal, and lets it end in order."""

import asyncio
import contextlib
import sys
from importlib.metadata import entry_points

import structlog

from laneway_driver.clock import CenterClock
from laneway_driver.consumer import CommandConsumer
from laneway_driver.dedup import AttemptMemory
from laneway_driver.executor import Executor
from laneway_driver.port import ADAPTER_GROUP, AdapterContext, DeviceAdapter
from laneway_driver.results import ResultSender
from laneway_driver.settings import DriverSettings
from laneway_driver.vitals import VERSION, Vitals
from laneway_shared import process
from laneway_shared.broker import Consumer, Publisher, declare
from laneway_shared.errors import BrokerAwayError, SettingsError
from laneway_shared.heartbeats import Pulse
from laneway_shared.telemetry import add_context
from laneway_shared.topology import Topology

log = structlog.get_logger(__name__)
DECLARE_RETRY_S = 1.0
CANCEL_CONSUMER_S = 2.0  # bound for RabbitMQ's word that no more deliveries come
FLUSH_S = 5.0  # bound for sending the last results
STOP_ADAPTER_S = 5.0


def build_adapter(settings: DriverSettings) -> DeviceAdapter:
    """The adapter that the settings name.

    Raises:
        SettingsError: there is none of that name, or its own settings can't be used.
    """
    known = entry_points(group=ADAPTER_GROUP)
    if settings.adapter not in known.names:
        names = ", ".join(sorted(known.names))
        raise SettingsError(f"LANEWAY_ADAPTER: no adapter {settings.adapter!r} is installed; there are {names}")
    factory = known[settings.adapter].load()
    adapter: DeviceAdapter = factory(AdapterContext(service=settings.service, instance=settings.instance))
    return adapter


class Driver:
    """One driver process: its parts, and how they start and end together."""

    def __init__(self, settings: DriverSettings, adapter: DeviceAdapter) -> None:
        self._settings = settings
        self._adapter = adapter
        self._topology = Topology(prefix=settings.topology_prefix)
        name, service = f"driver {settings.service} {settings.instance}", settings.service
        self._publisher = Publisher(settings.amqp_url, f"{name} results")
        self._consumer = Consumer(
            settings.amqp_url,
            f"{name} commands",
            self._topology.command_queue(service),
            prefetch=settings.capacity,
            restore=self._declare_once,
        )
        clock = CenterClock()
        self._results = ResultSender(self._publisher, self._topology, service)
        self._executor = Executor(adapter, self._results, clock, instance=settings.instance, lanes=settings.dedup_size)
        self._commands = CommandConsumer(
            executor=self._executor,
            results=self._results,
            memory=AttemptMemory(size=settings.dedup_size, ttl_s=settings.dedup_ttl_s),
            clock=clock,
            publisher=self._publisher,
            topology=self._topology,
            service=service,
            instance=settings.instance,
            capacity=settings.capacity,
        )
        vitals = Vitals(
            clock,
            service=service,
            instance=settings.instance,
            capacity=settings.capacity,
            in_flight=lambda: self._commands.in_flight,
            health=adapter.health,
        )
        self._pulse = Pulse(self._publisher, self._topology, service, vitals.heartbeat)

    async def serve(self, stop: asyncio.Event) -> None:
        """Run until `stop` is set, then drain.

        Raises:
            TopologyMismatchError: RabbitMQ holds the command queue or an exchange with other arguments.
        """
        if not await self._declare(stop):
            return
        await self._adapter.start()
        try:
            async with self._publisher.running(), asyncio.TaskGroup() as tasks:
                sender = tasks.create_task(self._results.run(), name="results")
                consumer = tasks.create_task(self._consumer.run(), name="consumer")
                batches = self._consumer.batches(self._settings.capacity)
                commands = tasks.create_task(self._commands.run(batches), name="commands")
                pulse = tasks.create_task(
                    self._pulse.run(self._settings.heartbeat_every_s, self._consumer.consuming), name="heartbeat"
                )
                await stop.wait()
                pulse.cancel()
                await self._drain(commands)
                sender.cancel()
                consumer.cancel()
        finally:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STOP_ADAPTER_S):
                    await self._adapter.stop()

    async def _declare_once(self) -> None:
        queue = self._topology.command_queue_of(self._settings.service)
        await declare(self._settings.amqp_url, self._topology.exchanges, [queue])

    async def _declare(self, stop: asyncio.Event) -> bool:
        """Declare what this driver uses, as soon as RabbitMQ is there; False when stopped before."""
        while not stop.is_set():
            try:
                await self._declare_once()
            except BrokerAwayError as error:
                log.warning("driver.waits", reason=error.message)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), DECLARE_RETRY_S)
            else:
                return True
        return False

    async def _drain(self, commands: asyncio.Task[None]) -> None:
        """Start nothing more, let finish what runs, give back the rest, and say so."""
        log.info("driver.drains", inFlight=self._commands.in_flight)
        self._executor.draining = True
        self._consumer.stop()
        await self._pulse.stop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CANCEL_CONSUMER_S):
                while self._consumer.consuming.is_set():  # noqa: ASYNC110 - the event tells of the start, not the end
                    await asyncio.sleep(0.01)
        self._commands.give_back(self._consumer.take_waiting())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.drain_s):
                await self._commands.idle()
        commands.cancel()
        await asyncio.wait([commands])
        unsent = await self._results.flush(FLUSH_S)
        log.info("driver.drained", unsent=unsent)


async def run(settings: DriverSettings) -> None:
    """Run a driver until SIGTERM or SIGINT."""
    stop = process.stop_event()
    add_context(service=settings.service)
    log.info("driver.starts", version=VERSION, adapter=settings.adapter, capacity=settings.capacity)
    await Driver(settings, build_adapter(settings)).serve(stop)


def main() -> None:
    """Entry point of `laneway-driver`."""
    sys.exit(process.run("driver", DriverSettings, run))
