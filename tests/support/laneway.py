"""Laneway as its users see it: submit over HTTP, poll, read timelines, and look into the devices' journals."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from laneway_local.stack import Stack
from laneway_shared.broker import Outgoing, Publisher

SWITCH, VOLUME, UNLOCK, BATTERY, PULSE = 1, 2, 3, 4, 5
OPEN_STATES = ["PENDING", "DISPATCHING", "SENT", "AWAITING_ACK", "RETRY_WAIT"]


@dataclass(frozen=True)
class Laneway:
    """A running system of processes."""

    stack: Stack
    centers: tuple[httpx.AsyncClient, ...]
    simulator: httpx.AsyncClient
    prefix: str
    virtual_journal: Path

    @property
    def center(self) -> httpx.AsyncClient:
        """The first center."""
        return self.centers[0]

    async def register(self, devices: Sequence[int], driver: str, **fields: Any) -> None:
        """Devices with five points each; those of driver mqtt are locks that the simulator plays."""
        profile = {"profile": "ydlink-lock"} if driver == "mqtt" else {}
        points = [
            {"pointId": SWITCH, "name": "lock"},
            {"pointId": VOLUME, "name": "volume", "valueType": "int", "min": 0, "max": 100_000},
            {"pointId": UNLOCK, "name": "unlock", "access": "W", "retrySafety": "unsafe"},
            {"pointId": BATTERY, "name": "battery", "access": "R"},
            {"pointId": PULSE, "name": "pulse", "access": "W", "ack": "none"},
        ]
        document = {
            "drivers": [{"name": driver}],
            "devices": [
                {"deviceId": n, "deviceSn": serial(n), "driver": driver, "points": points} | profile | fields
                for n in devices
            ],
        }
        (await self.center.post("/registry/import", json=document)).raise_for_status()

    async def submit(self, device: int, value: Any = None, point: int = SWITCH, **fields: Any) -> httpx.Response:
        """A WRITE, or a READ without value."""
        body = {"deviceId": device, "pointId": point, "type": "READ" if value is None else "WRITE"} | fields
        return await self.center.post("/commands", json=body if value is None else body | {"value": value})

    async def accepted(self, device: int, value: Any = None, point: int = SWITCH, **fields: Any) -> str:
        """The id of a command that must be accepted."""
        answer = await self.submit(device, value, point, **fields)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["commandId"])

    async def submit_batches(self, commands: Sequence[dict[str, Any]], size: int = 250) -> list[str]:
        """Submit in batches, one after the other, by turns to all centers; all must be accepted."""
        ids: list[str] = []
        for n, at in enumerate(range(0, len(commands), size)):
            center = self.centers[n % len(self.centers)]
            answer = await center.post("/commands/batch", json={"commands": commands[at : at + size]})
            results = answer.json()["results"]
            assert {item["httpStatus"] for item in results} == {202}, [i for i in results if "problem" in i][:1]
            ids += [item["command"]["commandId"] for item in results]
        return ids

    async def show(self, command_id: str) -> dict[str, Any]:
        """The command as it stands."""
        shown: dict[str, Any] = (await self.center.get(f"/commands/{command_id}")).raise_for_status().json()
        return shown

    async def ended(self, command_id: str, within_s: float = 60) -> dict[str, Any]:
        """The command when it is final or in review."""
        deadline = time.monotonic() + within_s
        while True:
            shown = await self.show(command_id)
            if shown["final"] or shown["status"] == "MANUAL_REVIEW":
                return shown
            assert time.monotonic() < deadline, f"still {shown['status']}: {await self.timeline(command_id)}"
            await asyncio.sleep(0.05)

    async def all_ended(self, within_s: float) -> None:
        """Wait until no command is open."""
        deadline = time.monotonic() + within_s
        while True:
            answer = await self.center.get("/commands", params={"status": OPEN_STATES, "limit": 1})
            left = answer.json()["commands"] if answer.is_success else ["the center can't say"]
            if not left:
                return
            assert time.monotonic() < deadline, left
            await asyncio.sleep(0.2)

    async def outcomes(self, devices: Sequence[int]) -> Counter[str]:
        """How many commands of these devices are in which state."""
        found: Counter[str] = Counter()
        for device in devices:
            cursor: str | None = None
            while True:
                params = {"deviceId": device, "limit": 500} | ({"cursor": cursor} if cursor else {})
                page = (await self.center.get("/commands", params=params)).raise_for_status().json()
                found.update(command["status"] for command in page["commands"])
                cursor = page["nextCursor"]
                if cursor is None:
                    break
        return found

    async def timeline(self, command_id: str) -> list[dict[str, Any]]:
        """Its events, oldest first."""
        events: list[dict[str, Any]] = (await self.center.get(f"/commands/{command_id}/events")).json()["events"]
        return events

    async def way(self, command_id: str) -> list[str]:
        """The states it went through."""
        return [event["to"] for event in await self.timeline(command_id) if event["from"] != event["to"]]

    async def executions(self, device: int, command_id: str | None = None) -> list[dict[str, Any]]:
        """What a lock executed (of one command), by its own journal, in order."""
        params = {"event": "executed"}
        journal = (await self.simulator.get(f"/devices/{serial(device)}/journal", params=params)).json()["entries"]
        return [entry for entry in journal if command_id in (None, entry["commandId"])]

    def virtual_executions(self) -> list[dict[str, Any]]:
        """What virtual devices executed, in order."""
        if not self.virtual_journal.exists():
            return []
        return [json.loads(line) for line in self.virtual_journal.read_text().splitlines()]

    async def behave(self, device: int, **behaviour: Any) -> None:
        """Let a lock misbehave."""
        (await self.simulator.put(f"/devices/{serial(device)}/behaviour", json=behaviour)).raise_for_status()

    async def until_online(self, *services: str, within_s: float = 60) -> None:
        """Wait until each driver service has a live instance, and a live listener where it is mqtt."""

        async def all_online() -> bool:
            answer = await self.center.get("/registry/drivers")
            if not answer.is_success:
                return False
            known = {each["name"]: each for each in answer.json()}
            for name in services:
                kinds = {i["kind"] for i in known[name]["instances"] if i["state"] == "online"}
                if not kinds >= ({"driver", "ack-listener"} if name == "mqtt" else {"driver"}):
                    return False
            return True

        await until(all_online, within_s)

    async def publish(self, exchange: str, routing_key: str, *bodies: bytes) -> None:
        """Put messages on an exchange by hand; each must be confirmed."""
        publisher = Publisher(self.stack.urls["LANEWAY_AMQP_URL"], "tests")
        async with publisher.running():
            assert await publisher.wait_connected(10)
            outcomes = await publisher.publish(
                [Outgoing(exchange=exchange, routing_key=routing_key, body=body) for body in bodies]
            )
        assert {outcome.value for outcome in outcomes} == {"confirmed"}


def serial(device: int) -> str:
    """The serial number of a test device."""
    return f"SN{device}"


async def until(condition: Callable[[], Any], within_s: float = 30) -> None:
    """Wait for a condition (awaitable), with a bound."""
    deadline = time.monotonic() + within_s
    while not await condition():
        assert time.monotonic() < deadline, "it didn't come true in time"
        await asyncio.sleep(0.1)


@asynccontextmanager
async def clients(stack: Stack, prefix: str, virtual_journal: Path, centers: int) -> AsyncIterator[Laneway]:
    """HTTP clients for a running system."""
    names = ["center", *(f"center-{n}" for n in range(2, centers + 1))]
    opened = [httpx.AsyncClient(base_url=stack.service_url(name), timeout=30, trust_env=False) for name in names]
    simulator = httpx.AsyncClient(base_url=stack.service_url("simulator"), timeout=30, trust_env=False)
    try:
        yield Laneway(stack, tuple(opened), simulator, prefix, virtual_journal)
    finally:
        for client in (*opened, simulator):
            await client.aclose()
