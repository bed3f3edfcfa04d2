"""Commands that keep coming whatever breaks: submitted under their own ids until somebody says what became of them."""

import asyncio
import random
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from support.laneway import BATTERY, UNLOCK, VOLUME, Laneway

BATCH = 25
DEADLINES_S = (8, 20, 40)
PAUSE_S = 0.3


@dataclass
class Load:
    """What was submitted, and what was said to it."""

    laneway: Laneway
    chance: random.Random
    devices: Sequence[int]
    unsafe: float  # share of unsafe commands
    accepted: list[str] = field(default_factory=list)
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
        }
        if chance.random() < self.unsafe:
            return command | {"pointId": UNLOCK, "type": "WRITE", "value": "1"}
        if chance.random() < 0.1:
            return command | {"pointId": BATTERY, "type": "READ"}
        return command | {"pointId": VOLUME, "type": "WRITE", "value": chance.randrange(1000)}

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
        again = []
        for command, result in zip(commands, results, strict=True):
            status = result["httpStatus"]
            if status in (200, 202):
                self.accepted.append(command["commandId"])
                self.answers[str(status)] += 1
            else:
                assert result["problem"]["code"] == "DRIVER_OFFLINE", result
                self.answers["DRIVER_OFFLINE"] += 1
                again.append(command)
        return again
