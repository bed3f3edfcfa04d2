"""Every failpoint in a running system: a process is frozen and a process is killed at each, and the books balance."""

import asyncio
import random
import sys
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from laneway_center.store.database import open_engine
from laneway_local import services
from laneway_local.services import Service
from laneway_local.stack import AMQP_URL, Stack
from laneway_shared.broker import Outcome, Outgoing, Publisher
from laneway_shared.failpoints import POINTS
from laneway_shared.messages import CommandMessage, CommandType, Payload, Target, encode
from laneway_shared.topology import Topology
from support.laneway import BATTERY, UNLOCK, VOLUME, Laneway, clients, until
from support.stack import laneway_services
from support.stored import books_balance, rows

WINDOW_S, CALL_S, GRACE_S, ACK_S = 2.0, 1.0, 1.0, 2.0
FROZEN_S = WINDOW_S + CALL_S + GRACE_S + 0.5  # until nothing may act for an attempt any more
DEADLINES_S = (2, 6, 10)
ALL_STRUCK_S, SETTLE_S = 420.0, 90.0  # bounds for a machine that is busy with other things
SETTINGS = {
    "LANEWAY_START_WINDOW_S": str(WINDOW_S),
    "LANEWAY_CALL_TIMEOUT_S": str(CALL_S),
    "LANEWAY_GRACE_S": str(GRACE_S),
    "LANEWAY_ACK_TIMEOUT_S": str(ACK_S),
    "LANEWAY_OFFLINE_AFTER_S": "5",
    "LANEWAY_HEARTBEAT_EVERY_S": "1",
    "LANEWAY_RETRY_BASE_S": "0.2",
    "LANEWAY_CONFIRM_TIMEOUT_S": "2",
    "LANEWAY_HOT_WINDOW_S": "2",
    "LANEWAY_ARCHIVE_POLL_S": "0.5",
}
STEADY, SLOW, MUTE, LOCKS = range(1, 7), 7, 8, range(11, 17)
"""Devices: virtual ones, one whose commands expire waiting, one that never answers, MQTT locks."""


@dataclass(frozen=True)
class Place:
    """Replicas that pass the same points; what one of them has struck, the others leave alone."""

    replicas: tuple[Service, ...]
    points: tuple[str, ...]
    log: Path

    def armed(self) -> list[Service]:
        """The replicas with a freeze and, at a later pass, a kill at each point."""
        points = ",".join(f"{point}=freeze,{point}=kill" for point in self.points)
        arms = {"LANEWAY_FAILPOINTS": points, "LANEWAY_FAILPOINTS_LOG": str(self.log)}
        return [replace(service, settings={**service.settings, **arms}) for service in self.replicas]

    def struck(self) -> set[tuple[str, str]]:
        """(point, kill or freeze) that came true."""
        lines = self.log.read_text().split() if self.log.exists() else []
        return {(point, word) for point, _, word in (line.partition("=") for line in lines)}

    @property
    def wanted(self) -> set[tuple[str, str]]:
        """All that shall come true."""
        return {(point, word) for point in self.points for word in ("freeze", "kill")}


def all_places(folder: Path) -> list[Place]:
    """The first center is in no place: it is always there for the callers, and takes over from the frozen one."""

    def place(replicas: Sequence[Service], *parts: str) -> Place:
        points = tuple(point for point in POINTS if point.partition(".")[0] in parts)
        return Place(tuple(replicas), points, folder / f"{replicas[0].name}.struck")

    return [
        place([services.center(2, "api,dispatch,schedule")], "intake", "dispatch", "schedule"),
        place([services.center(n, "record") for n in (3, 4)], "record", "letters"),
        place([services.driver("virtual", n) for n in (1, 2)], "driver"),
        place([services.driver("mqtt", n) for n in (1, 2)], "driver"),
        place([services.ACK_LISTENER], "listener"),
    ]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> list[Place]:
    return all_places(tmp_path_factory.mktemp("struck"))


@pytest.fixture(scope="module")
async def laneway(
    infra: Stack, database_url: str, prefix: str, places: list[Place], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Laneway]:
    """The system, armed."""
    journal = tmp_path_factory.mktemp("virtual") / "journal.ndjson"
    calm = [services.center(1, "api,dispatch,schedule"), services.SIMULATOR]
    manager = laneway_services(
        infra,
        [*calm, *(service for place in places for service in place.armed())],
        database_url=database_url,
        prefix=prefix,
        LANEWAY_VIRTUAL_JOURNAL=str(journal),
        **SETTINGS,
    )
    await asyncio.to_thread(manager.__enter__)
    try:
        async with clients(infra, prefix, journal, centers=2) as laneway:
            yield laneway
    finally:
        await asyncio.to_thread(manager.__exit__, None, None, None)


@dataclass
class Keeper:
    """Brings services back: the killed ones at once, the frozen ones when their commands' time is over."""

    stack: Stack
    places: Sequence[Place]
    began: float = field(default_factory=time.monotonic)
    struck_at: dict[tuple[str, str, str], float] = field(default_factory=dict)  # place, point, word: seconds

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for service in (service for place in self.places for service in place.replicas):
                tasks.create_task(self._revive(service.name))
                tasks.create_task(self._thaw(service.name))

    async def _revive(self, name: str) -> None:
        while True:
            if not self.stack.processes.is_alive(name):
                # it may be struck again before it is ready
                await asyncio.gather(asyncio.to_thread(self.stack.restart_service, name), return_exceptions=True)
            await asyncio.sleep(0.1)

    async def _thaw(self, name: str) -> None:
        while True:
            if is_frozen(self.stack, name):
                await asyncio.sleep(FROZEN_S)
                await asyncio.to_thread(self.stack.resume_service, name)
            await asyncio.sleep(0.1)

    async def all_struck(self) -> bool:
        """Whether everything wanted has come true."""
        for place in self.places:
            for point, word in place.struck():
                self.struck_at.setdefault((place.log.stem, point, word), time.monotonic() - self.began)
        return all(place.struck() >= place.wanted for place in self.places)

    async def all_well(self) -> bool:
        """Whether everybody is back."""
        names = [service.name for place in self.places for service in place.replicas]
        return all(self.stack.processes.is_alive(name) and not is_frozen(self.stack, name) for name in names)

    def coverage(self) -> str:
        """The list of points, each with the seconds at which it was struck."""
        lines = [f"{'where':18} {'point':22} {'freeze':>8} {'kill':>8}"]
        for place in self.places:
            for point in place.points:
                at = [self.struck_at.get((place.log.stem, point, word)) for word in ("freeze", "kill")]
                told = ["  never" if each is None else f"{each:6.1f}s" for each in at]
                lines.append(f"{place.log.stem:18} {point:22} {told[0]:>8} {told[1]:>8}")
        return "\n".join(lines)


def is_frozen(stack: Stack, name: str) -> bool:
    record = stack.state.read().children.get(name)
    try:
        return (
            record is not None and Path(f"/proc/{record.who.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
        )
    except OSError:
        return False


@dataclass
class Load:
    """Commands that keep coming, each under its own id until somebody says what became of it."""

    laneway: Laneway
    chance: random.Random = field(default_factory=lambda: random.Random(7))
    over: asyncio.Event = field(default_factory=asyncio.Event)
    accepted: list[str] = field(default_factory=list)
    answers: Counter[str] = field(default_factory=Counter)

    async def run(self) -> None:
        """Until `over`."""
        async with asyncio.TaskGroup() as tasks:
            for center in self.laneway.centers:
                tasks.create_task(self._submit_to(center))
            tasks.create_task(self._spoil())

    async def _submit_to(self, center: httpx.AsyncClient) -> None:
        while not self.over.is_set():
            commands = [self._command(self.chance.choice([*STEADY, *LOCKS])) for _ in range(4)]
            commands += [self._command(SLOW), self._command(MUTE)]
            answer = await self._answer(center, commands)
            for command, result in zip(commands, answer.raise_for_status().json()["results"], strict=True):
                word = result["problem"]["code"] if result["problem"] else str(result["httpStatus"])
                self.answers[word] += 1
                if word in ("200", "202"):
                    self.accepted.append(command["commandId"])
            await asyncio.sleep(0.5)

    async def _answer(self, center: httpx.AsyncClient, commands: list[dict[str, Any]]) -> httpx.Response:
        """What is said at last. Until then nobody knows whether they are stored: again, under the same ids."""
        while True:
            try:
                answer = await center.post("/commands/batch", json={"commands": commands}, timeout=10)
            except httpx.HTTPError as error:
                self.answers[type(error).__name__] += 1
            else:
                if answer.status_code != httpx.codes.SERVICE_UNAVAILABLE:
                    return answer
                self.answers[answer.json()["code"]] += 1
            center = self.laneway.center
            await asyncio.sleep(0.1)

    def _command(self, device: int) -> dict[str, Any]:
        chance = self.chance
        command = {
            "commandId": str(uuid.UUID(int=chance.getrandbits(128), version=4)),
            "deviceId": device,
            "expireIn": 1 if device == SLOW else chance.choice(DEADLINES_S),
        }
        if chance.random() < 0.1:
            return command | {"pointId": BATTERY, "type": "READ"}
        if chance.random() < 0.4:
            return command | {"pointId": UNLOCK, "type": "WRITE", "value": "1"}
        return command | {"pointId": VOLUME, "type": "WRITE", "value": chance.randrange(1000)}

    async def _spoil(self) -> None:
        """Messages that no driver can read, and dead letters of commands that nobody knows."""
        names = Topology(prefix=self.laneway.prefix)
        async with Publisher(self.laneway.stack.urls[AMQP_URL], "tests").running() as publisher:
            assert await publisher.wait_connected(10)
            while not self.over.is_set():
                rubbish = Outgoing(
                    exchange=names.command_exchange, routing_key=names.command_key("virtual"), body=b"rubbish"
                )
                letter = replace(rubbish, exchange=names.dead_exchange, body=encode(stray()))
                assert set(await publisher.publish([rubbish, letter])) == {Outcome.CONFIRMED}
                await asyncio.sleep(0.5)


def stray() -> CommandMessage:
    """A command of an id that was never submitted."""
    now = datetime.now(UTC)
    return CommandMessage(
        command_id=str(uuid.uuid4()),
        attempt=1,
        tenant_id=1,
        type=CommandType.WRITE,
        payload=Payload(kind="Write", device_id=1, point_id=VOLUME, value="1"),
        target=Target(device_sn="SN1", point="volume"),
        retry_safety="safe",
        gate="ack",
        lane_key="device:1",
        lane_token=1,
        occurred_at=now,
        expire_at=now + timedelta(seconds=1),
        published_at=now,
        start_by=now + timedelta(seconds=1),
        call_timeout=CALL_S,
    )


async def register(laneway: Laneway) -> None:
    """Devices whose answers are due soon."""
    points = [
        {"pointId": VOLUME, "name": "volume", "valueType": "int", "min": 0, "max": 100_000, "ackTimeout": ACK_S},
        {"pointId": UNLOCK, "name": "unlock", "access": "W", "retrySafety": "unsafe", "ackTimeout": ACK_S},
        {"pointId": BATTERY, "name": "battery", "access": "R", "ackTimeout": ACK_S},
    ]
    await laneway.register(STEADY, "virtual", points=points)  # act at once: nothing but their driver holds them up
    await laneway.register([SLOW], "virtual", points=points, address={"latencyMs": 800})
    await laneway.register([MUTE], "virtual", points=points, address={"silent": True})
    await laneway.register(LOCKS, "mqtt", points=points)


async def verified(laneway: Laneway, database_url: str) -> tuple[int | None, str]:
    """What `laneway verify` returns and says."""
    process = await asyncio.create_subprocess_exec(
        str(services.script("laneway")), "verify", "--database-url", database_url, "--journal",
        str(laneway.virtual_journal), "--simulator", str(laneway.simulator.base_url),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    said, _ = await process.communicate()
    return process.returncode, said.decode()


def say(text: str) -> None:
    """Into the test's report."""
    sys.stdout.write(f"{text}\n")


async def test_each_point_is_struck_by_a_freeze_and_a_kill_and_the_books_balance(
    laneway: Laneway, places: list[Place], database_url: str
) -> None:
    assert {point for place in places for point in place.points} == POINTS.keys()
    keeper, load = Keeper(laneway.stack, places), Load(laneway)
    async with asyncio.TaskGroup() as tasks:
        keeping = tasks.create_task(keeper.run())
        await register(laneway)
        loading = tasks.create_task(load.run())
        try:
            await until(keeper.all_struck, ALL_STRUCK_S)
        finally:
            say(keeper.coverage())
            load.over.set()
            await loading
        await until(keeper.all_well, 60)
        keeping.cancel()
    await laneway.all_ended(SETTLE_S)
    say(f"over after {time.monotonic() - keeper.began:.0f} s; answers {dict(load.answers)}")
    code, said = await verified(laneway, database_url)
    assert code == 0, said
    engine = open_engine(database_url, size=2, name="failpoints")
    try:
        known = await rows(
            engine,
            "SELECT command_id::text AS id, status FROM point_command"
            " UNION ALL SELECT command_id::text, status FROM point_command_history",
        )
        letters = await rows(engine, "SELECT reason, count(*) AS count FROM dead_letter GROUP BY reason")
        await books_balance(engine)
    finally:
        await engine.dispose()
    states = Counter(row.status for row in known)
    say(f"states {dict(states)}, letters { {row.reason: row.count for row in letters} }")
    assert not set(load.accepted) - {row.id for row in known}, "accepted and gone"
    assert states["SUCCESS"], "some should get through"
    assert states["EXPIRED"], "some should never have left"
