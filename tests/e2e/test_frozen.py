"""Processes that stand still, wrong clocks, a broker that takes nothing in: late is never run, answers count."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from laneway_center.store.database import open_engine
from laneway_center.verify.findings import Terms
from laneway_center.verify.journals import from_file
from laneway_center.verify.rules import check
from laneway_center.verify.snapshot import load
from laneway_local import services
from laneway_local.services import Service
from laneway_local.stack import Stack
from support.laneway import UNLOCK, VOLUME, Laneway, clients, until
from support.stack import laneway_services

WINDOW_S, CALL_S, GRACE_S = 2.0, 2.0, 1.0
BOUND_S = WINDOW_S + CALL_S + GRACE_S
DOWN_S = 12.0  # more than twice the bound
ALARM_S = 7.0  # longer than the silence after which an instance is offline
MEMORY_LIMIT = ("absolute", "1GB")  # as the stack configures it
SETTINGS = {
    "LANEWAY_START_WINDOW_S": str(WINDOW_S),
    "LANEWAY_CALL_TIMEOUT_S": str(CALL_S),
    "LANEWAY_GRACE_S": str(GRACE_S),
    "LANEWAY_ACK_TIMEOUT_S": "2",
    "LANEWAY_OFFLINE_AFTER_S": "5",
    "LANEWAY_HEARTBEAT_EVERY_S": "1",
    "LANEWAY_RETRY_BASE_S": "0.2",
}
FRONT = "api,dispatch,schedule"
CENTERS = (services.center(1, FRONT), services.center(2, FRONT))
RECORDER, DISPATCHER = services.center(3, "record"), services.center(4, "dispatch")
DRIVERS = (services.driver("virtual"), services.driver("virtual", 2))
OFFSETS_S = {"fast": 60, "slow": -60}
FAKETIME = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)


@pytest.fixture(scope="module")
async def laneway(
    infra: Stack, database_url: str, prefix: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Laneway]:
    """Two centers that send and ask, one that records, two drivers; with short windows."""
    journal = tmp_path_factory.mktemp("virtual") / "journal.ndjson"
    wanted = (*CENTERS, RECORDER, *DRIVERS, services.SIMULATOR)
    own = SETTINGS | {"LANEWAY_VIRTUAL_JOURNAL": str(journal)}
    manager = laneway_services(infra, wanted, database_url=database_url, prefix=prefix, **own)
    await asyncio.to_thread(manager.__enter__)
    try:
        async with clients(infra, prefix, journal, centers=2) as laneway:
            await laneway.register([1], "virtual")
            await laneway.until_online("virtual")
            yield laneway
    finally:
        await asyncio.to_thread(manager.__exit__, None, None, None)


@pytest.fixture
async def further(laneway: Laneway, database_url: str, prefix: str) -> AsyncIterator["Further"]:
    """Starts services that only one test needs."""
    own = SETTINGS | {
        "LANEWAY_DATABASE_URL": database_url,
        "LANEWAY_TOPOLOGY_PREFIX": prefix,
    }
    started = Further(laneway.stack, own)
    yield started
    await started.end()


class Further:
    """Further services, which end with the test."""

    def __init__(self, stack: Stack, settings: dict[str, str]) -> None:
        self._stack, self._settings = stack, settings
        self._names: list[str] = []

    async def start(self, *wanted: Service) -> None:
        """Start them and wait until they are ready."""
        self._names += [service.name for service in wanted]
        await asyncio.to_thread(self._stack.start_services, wanted, **self._settings)

    async def end(self) -> None:
        """Stop them, also those that are frozen."""
        for name in self._names:
            self._stack.resume_service(name)
        await asyncio.to_thread(self._stack.stop_services, self._names)


@asynccontextmanager
async def frozen(stack: Stack, *names: str) -> AsyncIterator[None]:
    """Let services stand still for the length of a block."""
    for name in names:
        stack.pause_service(name)
    try:
        yield
    finally:
        for name in names:
            stack.resume_service(name)


async def verified(laneway: Laneway, database_url: str, *further: Path) -> None:
    """The checker finds nothing."""
    journals = tuple(from_file(path, lambda *_: None) for path in (laneway.virtual_journal, *further))
    engine = open_engine(database_url, size=1, name="verify")
    try:
        facts = await load(engine, None, lambda *_: None)
    finally:
        await engine.dispose()
    found = check(replace(facts, journals=journals), Terms())
    assert {rule: about for rule, about in found.items() if about != []} == {}


async def all_succeeded(laneway: Laneway, commands: Sequence[str], within_s: float = 60) -> None:
    """Each ends in SUCCESS."""
    for command in commands:
        ended = await laneway.ended(command, within_s)
        assert ended["status"] == "SUCCESS", await laneway.timeline(command)


def executed(laneway: Laneway, commands: Sequence[str]) -> Counter[str]:
    """How often devices executed each of these."""
    return Counter(entry["commandId"] for entry in laneway.virtual_executions() if entry["commandId"] in commands)


async def refused_as_late(laneway: Laneway, commands: Sequence[str], instance: str) -> set[tuple[str, int]]:
    """Attempts that this instance was given too late, by command and number."""
    return {
        (command, event["attempt"])
        for command in commands
        for event in await laneway.timeline(command)
        if event["kind"] == "EXPIRED" and (event["detail"] or {}).get("instance") == instance
    }


async def submit(laneway: Laneway, devices: Sequence[int], **fields: object) -> list[str]:
    """An unlock and a level for each device."""
    asked = {"maxAttempts": 20, "expireIn": 120} | fields
    return [
        await laneway.accepted(device, value, point, **asked)
        for device in devices
        for point, value in ((UNLOCK, "1"), (VOLUME, device))
    ]


# --------------------------------------------------------------------------------------- frozen
async def test_a_driver_that_stood_still_past_the_window_runs_nothing(laneway: Laneway, database_url: str) -> None:
    devices = range(100, 110)
    await laneway.register(devices, "virtual")
    name = DRIVERS[0].name
    async with frozen(laneway.stack, name):
        commands = await submit(laneway, devices)  # RabbitMQ goes on giving it its share
        await asyncio.sleep(BOUND_S)

    async def woke() -> bool:
        return bool(await refused_as_late(laneway, commands, name))

    await until(woke, 20)
    await all_succeeded(laneway, commands)
    assert executed(laneway, commands) == dict.fromkeys(commands, 1)
    await verified(laneway, database_url)


async def test_a_center_that_stood_still_takes_up_its_work(laneway: Laneway, database_url: str) -> None:
    devices = range(200, 220)
    await laneway.register(devices, "virtual", address={"latencyMs": 20})
    asked = [
        {"deviceId": device, "pointId": VOLUME, "type": "WRITE", "value": n, "expireIn": 120, "maxAttempts": 20}
        for n in range(10)
        for device in devices
    ]
    commands = await laneway.submit_batches(asked)
    async with frozen(laneway.stack, CENTERS[1].name, RECORDER.name):
        await asyncio.sleep(BOUND_S + 1)
    await all_succeeded(laneway, commands)
    await verified(laneway, database_url)


async def test_what_a_frozen_dispatcher_publishes_late_is_not_run_by_drivers_that_just_started(
    laneway: Laneway, database_url: str, further: Further, tmp_path: Path
) -> None:
    devices = range(300, 310)
    await laneway.register(devices, "virtual")
    log = tmp_path / "struck"
    arms = {"LANEWAY_FAILPOINTS": "dispatch.publishing=freeze", "LANEWAY_FAILPOINTS_LOG": str(log)}
    await further.start(replace(DISPATCHER, settings={**DISPATCHER.settings, **arms}))
    commands: list[str] = []
    for _ in range(20):
        commands += await submit(laneway, devices)
        if log.exists():
            break
    assert log.exists(), "the dispatcher never claimed anything"
    await all_succeeded(laneway, commands)  # so those of the frozen dispatcher have been sent by another one
    restarts = [asyncio.to_thread(laneway.stack.restart_service, driver.name) for driver in DRIVERS]
    await asyncio.gather(*restarts)
    laneway.stack.resume_service(DISPATCHER.name)

    async def refused() -> bool:
        late = [await refused_as_late(laneway, commands, driver.name) for driver in DRIVERS]
        return any(late)

    await until(refused, 20)
    assert executed(laneway, commands) == dict.fromkeys(commands, 1)
    await verified(laneway, database_url)


# ----------------------------------------------------------------------------------------- away
async def test_nothing_is_timed_out_that_was_answered_while_the_center_was_down(
    laneway: Laneway, database_url: str
) -> None:
    devices = range(400, 420)
    await laneway.register(devices, "virtual")
    stack = laneway.stack
    stack.kill_service(RECORDER.name)
    commands = [await laneway.accepted(device, "1", UNLOCK, expireIn=10) for device in devices]

    async def all_executed() -> bool:
        return len(executed(laneway, commands)) == len(commands)

    await until(all_executed, 20)
    for center in CENTERS:
        stack.kill_service(center.name)
    await asyncio.sleep(DOWN_S)
    await asyncio.gather(*(asyncio.to_thread(stack.restart_service, center.name) for center in CENTERS))
    await asyncio.sleep(1)  # who asks is back before who reads
    await asyncio.to_thread(stack.restart_service, RECORDER.name)
    await all_succeeded(laneway, commands)
    assert {(await laneway.show(command))["attempt"] for command in commands} == {1}
    assert executed(laneway, commands) == dict.fromkeys(commands, 1)
    await verified(laneway, database_url)


async def test_commands_are_accepted_during_a_memory_alarm_and_end_after_it(
    laneway: Laneway, database_url: str
) -> None:
    devices = range(500, 520)
    await laneway.register(devices, "virtual", address={"latencyMs": 20})
    control = laneway.stack.rabbitmq.control
    commands: list[str] = []

    async def blocked() -> bool:  # who publishes nothing isn't told
        commands.extend(await submit(laneway, devices))
        return await says_of_broker(laneway, "blocked by a resource alarm")

    await asyncio.to_thread(control, "set_vm_memory_high_watermark", "0.0001")
    began = time.monotonic()
    try:
        await until(blocked, 20)
        while time.monotonic() < began + ALARM_S:
            assert await blocked()
    finally:
        await asyncio.to_thread(control, "set_vm_memory_high_watermark", *MEMORY_LIMIT)
    await until(lambda: says_of_broker(laneway, "ok"), 20)
    await all_succeeded(laneway, commands)
    await verified(laneway, database_url)


async def says_of_broker(laneway: Laneway, word: str) -> bool:
    """Whether the center's readiness says this of RabbitMQ; it is ready all the same."""
    answer = await laneway.center.get("/readyz")
    assert answer.status_code == httpx.codes.OK
    return bool(answer.json()["checks"]["broker"] == word)


# --------------------------------------------------------------------------------------- clocks
@pytest.mark.skipif(FAKETIME is None, reason="needs libfaketime (Debian package libfaketime)")
async def test_a_clock_a_minute_wrong_is_shown_and_makes_nothing_run_late(
    laneway: Laneway, database_url: str, further: Further, tmp_path: Path
) -> None:
    wrong = {"fast": services.driver("virtual", 3), "slow": services.driver("virtual", 4)}
    devices = {"fast": range(600, 603), "slow": range(603, 606)}
    journals = {name: tmp_path / name for name in wrong}
    for name in wrong:
        await laneway.register(devices[name], name)
    own = {name: {"LANEWAY_SERVICE": name, "LANEWAY_VIRTUAL_JOURNAL": str(journals[name])} for name in wrong}
    await further.start(
        *(replace(each, settings={**each.settings, **own[name], **fake_time(name)}) for name, each in wrong.items())
    )
    await laneway.until_online(*wrong)
    first = [command for name in wrong for command in await submit(laneway, devices[name])]
    await all_succeeded(laneway, first)
    await until(lambda: offsets_shown(laneway), 20)
    async with frozen(laneway.stack, *(service.name for service in wrong.values())):
        held = {name: await submit(laneway, devices[name]) for name in wrong}
        await asyncio.sleep(WINDOW_S + 1)
    for name, service in wrong.items():
        await all_succeeded(laneway, held[name])
        assert await refused_as_late(laneway, held[name], service.name), name
    await verified(laneway, database_url, *(with_right_time(path, name) for name, path in journals.items()))


def with_right_time(journal: Path, name: str) -> Path:
    """A copy of what a driver with a wrong clock wrote down, at the times at which it really was."""
    entries = [json.loads(line) for line in journal.read_text().splitlines()]
    assert len({entry["commandId"] for entry in entries}) == len(entries), "each once"
    for entry in entries:
        entry["at"] = str(datetime.fromisoformat(entry["at"]) - timedelta(seconds=OFFSETS_S[name]))
    copy = journal.with_suffix(".right")
    copy.write_text("".join(f"{json.dumps(entry)}\n" for entry in entries))
    return copy


def fake_time(name: str) -> dict[str, str]:
    """Settings of a process whose wall clock is wrong; its monotonic clock is right."""
    return {"LD_PRELOAD": str(FAKETIME), "FAKETIME": f"{OFFSETS_S[name]:+}s", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}


async def offsets_shown(laneway: Laneway) -> bool:
    """Whether the center's metrics tell of a minute for both services."""
    text = (await laneway.center.get("/metrics")).raise_for_status().text
    shown = {
        sample.labels["service"]: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "laneway_driver_clock_offset_seconds"
    }
    return all(abs(shown.get(name, 0) - 60) < 2 for name in OFFSETS_S)
