"""Composition root: settings, locks, MQTT and HTTP in one event loop."""

import asyncio
import sys
import time

import structlog

from laneway_shared import process
from laneway_shared.serving import listen, serve
from laneway_simulator.api import build_app
from laneway_simulator.fleet import Fleet
from laneway_simulator.journal import Journal
from laneway_simulator.link import MqttLink
from laneway_simulator.settings import SimulatorSettings
from laneway_simulator.topics import lock_topics

log = structlog.get_logger(__name__)
LAST_REQUESTS_S = 3.0  # how long open requests may take at the end


class SystemClock:
    """The machine's time."""

    def now(self) -> float:
        """Epoch seconds."""
        return time.time()

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)


def main() -> None:
    """Entry point of `laneway-simulator`."""
    sys.exit(process.run("simulator", SimulatorSettings, run))


async def run(settings: SimulatorSettings) -> None:
    """Play locks until SIGTERM or SIGINT.

    Raises:
        SettingsError: the address can't be listened on.
        ProfileError: the profile isn't there or can't be played.
    """
    stop = process.stop_event()
    link = MqttLink(settings, topics=lock_topics(settings.profiles_dir))
    with listen(settings.http_host, settings.http_port) as listener:
        async with asyncio.TaskGroup() as tasks:
            fleet = Fleet(
                plan=settings.fault_plan(),
                journal=Journal(settings.simulator_journal_limit),
                clock=SystemClock(),
                send=link.send,
                tasks=tasks,
                device_limit=settings.simulator_device_limit,
            )
            hearing = tasks.create_task(link.run(fleet.receive), name="mqtt")
            log.info("simulator.listens", host=settings.http_host, port=listener.getsockname()[1])
            await serve(build_app(fleet, link), listener, stop, patience_s=LAST_REQUESTS_S)
            log.info("simulator.stops")
            hearing.cancel()
            fleet.stop()
