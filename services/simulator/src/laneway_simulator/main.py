"""Composition root: settings, locks, MQTT and HTTP in one event loop."""

import asyncio
import contextlib
import signal
import socket
import sys
import time
from collections.abc import Generator

import structlog
import uvicorn

from laneway_shared.errors import LanewayError, SettingsError
from laneway_shared.settings import load
from laneway_shared.telemetry import configure_logs
from laneway_simulator.api import build_app
from laneway_simulator.fleet import Fleet
from laneway_simulator.journal import Journal
from laneway_simulator.link import MqttLink
from laneway_simulator.settings import SimulatorSettings
from laneway_simulator.topics import lock_topics

_log = structlog.get_logger()
_LAST_REQUESTS_S = 3  # how long open requests may take at the end


class SystemClock:
    """The machine's time."""

    def now(self) -> float:
        """Epoch seconds."""
        return time.time()

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)


class _Server(uvicorn.Server):
    """Uvicorn that leaves signals to `serve`: it would end the process by the signal it caught."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


def main() -> None:
    """Run until SIGTERM or SIGINT. Exit code 0 then, 1 with one line on standard error if it can't start."""
    try:
        settings = load(SimulatorSettings)
        configure_logs(settings.log_level, service="simulator", instance=settings.instance)
        with _listen(settings.http_host, settings.http_port) as listener:
            asyncio.run(serve(settings, listener))
    except LanewayError as error:
        sys.exit(f"laneway-simulator: {error.message}")


async def serve(settings: SimulatorSettings, listener: socket.socket) -> None:
    """Play locks until the process is told to stop.

    Raises:
        LanewayError: a setting or the profile can't be used.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    link = MqttLink(settings.mqtt_url, topics=lock_topics(), instance=settings.instance)
    async with asyncio.TaskGroup() as tasks:
        fleet = Fleet(
            plan=settings.fault_plan(),
            journal=Journal(settings.simulator_journal_limit),
            clock=SystemClock(),
            send=link.send,
            tasks=tasks,
            device_limit=settings.simulator_device_limit,
        )
        server = _Server(
            uvicorn.Config(
                build_app(fleet, link),
                log_config=None,
                access_log=False,
                lifespan="off",
                timeout_graceful_shutdown=_LAST_REQUESTS_S,
            )
        )
        hearing = tasks.create_task(link.run(fleet.receive))
        answering = tasks.create_task(server.serve(sockets=[listener]))
        _log.info("simulator listens", host=settings.http_host, port=listener.getsockname()[1])
        await stop.wait()
        _log.info("simulator stops")
        server.should_exit = True
        await answering
        hearing.cancel()
        fleet.stop()


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise SettingsError(f"can't listen on {host} port {port}: {error.strerror or error}") from None
