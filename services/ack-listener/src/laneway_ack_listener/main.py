"""The ack-listener as a process: composition, signals, exit codes."""

import asyncio
import signal
import sys
from collections.abc import Mapping

import structlog

from laneway_ack_listener.forwarding import Forwarder
from laneway_ack_listener.heartbeat import Pulse
from laneway_ack_listener.mqtt_acks import MqttAcks
from laneway_ack_listener.reading import AnswerReader
from laneway_ack_listener.settings import AckListenerSettings
from laneway_shared.broker import Claim, Publisher
from laneway_shared.errors import LanewayError
from laneway_shared.profiles import Profile, choose, load_profiles
from laneway_shared.settings import load
from laneway_shared.telemetry import configure_logs
from laneway_shared.topology import Topology

log = structlog.get_logger(__name__)


def main() -> None:
    """Run until SIGTERM or SIGINT. Exit code 0 after a stop, 1 after a failure, 2 for a setting or a profile."""
    try:
        settings = load(AckListenerSettings)
        profiles = choose(load_profiles(settings.profiles_dir), settings.profile_names)
    except LanewayError as error:
        sys.stderr.write(f"laneway-ack-listener: {error.message}\n")
        sys.exit(2)
    configure_logs(settings.log_level, process="ack-listener", service=settings.service, instance=settings.instance)
    failure: LanewayError | None = None
    try:
        asyncio.run(_run_until_signal(settings, profiles))
    except* LanewayError as errors:
        failure = _first(errors)
    if failure is not None:
        sys.stderr.write(f"laneway-ack-listener: {failure.message}\n")
        sys.exit(1)


def _first(errors: BaseExceptionGroup[LanewayError]) -> LanewayError:
    first = errors.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first


async def _run_until_signal(settings: AckListenerSettings, profiles: Mapping[str, Profile]) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    await run(settings, profiles, stopping)


async def run(settings: AckListenerSettings, profiles: Mapping[str, Profile], stopping: asyncio.Event) -> None:
    """Take the claim whenever it is free, listen while it is held; return after `stopping`.

    Raises:
        TopologyMismatchError: (in a group) RabbitMQ has the claim's queue with other arguments.
    """
    topology = Topology(prefix=settings.topology_prefix)
    name = f"ack-listener {settings.instance}"
    claim = Claim(settings.amqp_url, f"{name} claim", topology.listener_claim_queue(settings.service))
    async with Publisher(settings.amqp_url, f"{name} results").running() as publisher, asyncio.TaskGroup() as tasks:
        acks = MqttAcks(
            settings,
            AnswerReader(profiles, instance=settings.instance),
            Forwarder(publisher, topology, settings.service),
        )
        pulse = Pulse(settings, topology, publisher, list(profiles))
        claiming = tasks.create_task(claim.run(), name="claim")
        beating = tasks.create_task(pulse.run(acks), name="heartbeats")
        working = tasks.create_task(_work(claim, acks, stopping), name="answers")
        await stopping.wait()
        log.info("stopping")
        beating.cancel()
        await pulse.stop()
        if claim.held.is_set():
            await asyncio.wait([working], timeout=settings.drain_s)
        for task in (working, claiming):
            task.cancel()


async def _work(claim: Claim, acks: MqttAcks, stopping: asyncio.Event) -> None:
    while not stopping.is_set():
        await claim.while_held(lambda: acks.run(stopping))
