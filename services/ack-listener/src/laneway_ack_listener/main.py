"""The ack-listener as a process: how its parts start and end together."""

import asyncio
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version

import structlog

from laneway_ack_listener.forwarding import Forwarder
from laneway_ack_listener.mqtt_acks import MqttAcks
from laneway_ack_listener.reading import AnswerReader
from laneway_ack_listener.settings import AckListenerSettings
from laneway_shared import process
from laneway_shared.broker import Claim, Publisher
from laneway_shared.heartbeats import Pulse
from laneway_shared.messages import Heartbeat
from laneway_shared.profiles import Profile, choose, load_profiles
from laneway_shared.telemetry import add_context
from laneway_shared.topology import Topology

log = structlog.get_logger(__name__)
VERSION = version("laneway-ack-listener")


def main() -> None:
    """Entry point of `laneway-ack-listener`."""
    sys.exit(process.run("ack-listener", AckListenerSettings, _run_until_signal))


async def _run_until_signal(settings: AckListenerSettings) -> None:
    stop = process.stop_event()
    add_context(service=settings.service)
    await run(settings, choose(load_profiles(settings.profiles_dir), settings.profile_names), stop)


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

        def heartbeat(state: str) -> Heartbeat:
            return Heartbeat(
                kind="ack-listener",
                service=settings.service,
                instance=settings.instance,
                version=VERSION,
                state=state,
                in_flight=acks.in_hand,
                profiles=sorted(profiles),
                sent_at=datetime.now(UTC),
            )

        pulse = Pulse(publisher, topology, settings.service, heartbeat)
        claiming = tasks.create_task(claim.run(), name="claim")
        beating = tasks.create_task(pulse.run(settings.heartbeat_every_s, acks.listening), name="heartbeats")
        working = tasks.create_task(_work(claim, acks, stopping), name="answers")
        await stopping.wait()
        log.info("listener.stops", inHand=acks.in_hand)
        beating.cancel()
        await pulse.stop()
        if claim.held.is_set():
            await asyncio.wait([working], timeout=settings.drain_s)
        for task in (working, claiming):
            task.cancel()


async def _work(claim: Claim, acks: MqttAcks, stopping: asyncio.Event) -> None:
    while not stopping.is_set():
        await claim.while_held(lambda: acks.run(stopping))
