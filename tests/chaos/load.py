"""Commands that keep coming whatever breaks: submitted under their own ids until somebody says what became of them."""

import asyncio
import random
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from support.laneway import BATTERY, PULSE, UNLOCK, VOLUME, Laneway

BATCH = 25
DEADLINES_S = (8, 20, 40)
PAUSE_S = 0.3
FULL = ("LANE_FULL", "BACKLOG_FULL")


@dataclass
class Load:
    """What was submitted, and what was said to it."""

    laneway: Laneway
    chance: random.Random
    devices: Sequence[int]
    unsafe: float  # share of unsafe commands
    accepted: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)  # for want of room, or because a live one wants the same
    answers: Counter[str] = field(default_factory=Counter)

    async def run(self, commands: int, seconds: float) -> None:
        """Spread so many commands over so many seconds, as far as the system lets it."""
        began = asyncio.get_running_loop().time()
        batches = [min(BATCH, commands - at) for at in range(0, commands, BATCH)]
        for n, size in enumerate(batches):
            await self._submit([self._command() for _ in range(size)])
            ahead = began + seconds * (n + 1) / len(batches) - asyncio.get_running_loop().time()
            if ahead > 0:
                await asyncio.sleep(ahead)

    def _command(self) -> dict[str, Any]:
        chance, device = self.chance, self.chance.choice(self.devices)
        command: dict[str, Any] = {
            "commandId": str(uuid.UUID(int=chance.getrandbits(128), version=4)),
            "deviceId": device,
            "expireIn": chance.choice(DEADLINES_S),
            "priority": chance.choice([None, None, 0, 1, 3, 6]),
            "gate": chance.choice([None] * 8 + ["ack", "transport"]),
        } | self._intent()
        if chance.random() < self.unsafe:
            return command | {"pointId": UNLOCK, "type": "WRITE", "value": "1"}
        kind = chance.random()
        if kind < 0.1:
            return command | {"pointId": BATTERY, "type": "READ"}
        if kind < 0.2:
            return command | {"pointId": PULSE, "type": "WRITE", "value": "1"}
        return command | {"pointId": VOLUME, "type": "WRITE", "value": chance.randrange(1000)}

    def _intent(self) -> dict[str, Any]:
        chance = self.chance
        if chance.random() < 0.6:
            return {}
        return {
            "intentKey": f"face:{chance.randrange(3)}",
            "merge": chance.choice([None, None, "latest", "reject_duplicate"]),
            "purpose": chance.choice([None, "grant", "grant", "revoke"]),
        }

    async def _submit(self, commands: list[dict[str, Any]]) -> None:
        """The same commands again until each is accepted or refused: what nobody answered may be stored or not."""
        left = commands
        while left:
            center = self.chance.choice(self.laneway.centers)
            try:
                answer = await center.post("/commands/batch", json={"commands": left}, timeout=10)
            except httpx.HTTPError as error:
                self.answers[type(error).__name__] += 1
                await asyncio.sleep(PAUSE_S)
                continue
            if answer.status_code != httpx.codes.OK:
                assert answer.status_code == httpx.codes.SERVICE_UNAVAILABLE, answer.text
                self.answers["503"] += 1
                await asyncio.sleep(PAUSE_S)
                continue
            left = self._sort(left, answer.json()["results"])
            if left:
                await asyncio.sleep(PAUSE_S)

    def _sort(self, commands: list[dict[str, Any]], results: list[dict[str, Any]]) -> list[dict[str, Any]]:
        again: list[dict[str, Any]] = []
        for command, result in zip(commands, results, strict=True):
            own = command["commandId"]
            if result["httpStatus"] in (200, 202):
                said = str(result["httpStatus"])
                if result["command"]["commandId"] == own:
                    self.accepted.append(own)
                else:
                    assert command["merge"] == "reject_duplicate", result
                    said = "duplicate"
                    self.refused.append(own)
            else:
                said = result["problem"]["code"]
                if said == "DRIVER_OFFLINE":
                    again.append(command)
                else:
                    assert said in FULL, result
                    self.refused.append(own)
            self.answers[said] += 1
        return again
