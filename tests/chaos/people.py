"""Callers who change their minds, and operators who hold, release and skip at random, over HTTP."""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from chaos.load import Load
from support.laneway import Laneway

PAUSE_S = (0.02, 0.3)
RECENT = 60  # commands
MOST_HELD = 4  # lanes at once
VERBS = {"hold": "LANE_HELD", "release": "LANE_NOT_HELD", "skip": "LANE_EMPTY"}
NO_ANSWER = "no answer"


@dataclass
class People:
    """What they did, and what they were told."""

    laneway: Laneway
    load: Load
    chance: random.Random
    lanes: Sequence[str]
    told: Counter[str] = field(default_factory=Counter)
    cancelled: set[str] = field(default_factory=set)  # they were told so
    _held: list[str] = field(default_factory=list)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(self.chance.uniform(*PAUSE_S))
            if self.chance.random() < 0.6:
                await self._cancel()
            else:
                await self._operate()

    async def _cancel(self) -> None:
        recent = self.load.accepted[-RECENT:]
        if recent:
            one = self.chance.choice(recent)
            answer = await self._post(f"/commands/{one}/cancel")
            if answer is not None and answer.status_code == httpx.codes.OK:
                self.cancelled.add(one)
            self._note("cancel", answer, "TOO_LATE")

    async def _operate(self) -> None:
        if len(self._held) >= MOST_HELD or (self._held and self.chance.random() < 0.4):
            await self._turn("release", self._held.pop(self.chance.randrange(len(self._held))))
        elif self.chance.random() < 0.5:
            lane = self.chance.choice(self.lanes)
            self._held.append(lane)
            await self._turn("hold", lane)
        else:
            await self._turn("skip", self.chance.choice(self.lanes))

    async def _turn(self, verb: str, lane: str) -> None:
        body, who = {"reason": "chaos"}, {"X-Operator": "chaos"}
        answer = await self._post(f"/lanes/{lane}/{verb}", json=body, headers=who)
        self._note(verb, answer, VERBS[verb], "LANE_IN_FLIGHT")

    async def release_all(self) -> None:
        """Open what is held; nothing is broken any more."""
        for lane in dict.fromkeys(self.lanes):
            shown = (await self.laneway.center.get(f"/lanes/{lane}")).raise_for_status().json()
            if shown["operatorHold"] is not None:
                await self._turn("release", lane)

    async def _post(self, path: str, **request: Any) -> httpx.Response | None:
        try:
            return await self.chance.choice(self.laneway.centers).post(path, timeout=10, **request)
        except httpx.HTTPError:
            return None

    def _note(self, verb: str, answer: httpx.Response | None, *expected: str) -> None:
        if answer is None or answer.status_code == httpx.codes.SERVICE_UNAVAILABLE:
            self.told[f"{verb}: {NO_ANSWER}"] += 1
        elif answer.status_code == httpx.codes.OK:
            self.told[verb] += 1
        else:
            code = answer.json()["code"]
            assert code in expected, answer.text
            self.told[f"{verb}: {code}"] += 1
