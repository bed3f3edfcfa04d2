"""The lanes of a chaos run: every policy somewhere, some of them together, some lanes shared."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from support.laneway import Laneway

AGEING_S = 5.0  # so short that it happens within a run
FIRST_VIRTUAL, FIRST_LOCK = 10_000, 20_000
POLICIES: Sequence[dict[str, Any]] = (
    {},
    {"retry": "relaxed"},
    {"gate": "transport"},
    {"reviewPolicy": "hold"},
    {"depthLimit": 4, "onFull": "drop_oldest"},
    {"depthLimit": 4, "retry": "relaxed"},
    {"lane": "pair"},
    {"lane": "pair", "retry": "relaxed", "depthLimit": 6, "onFull": "drop_oldest", "reviewPolicy": "hold"},
    {"lane": "mixed"},
    {"gate": "transport", "retry": "relaxed", "depthLimit": 3, "onFull": "drop_oldest", "reviewPolicy": "hold"},
)
"""By device, round and round. `lane`: shared with the next device of this policy (pair), or with the one of the same
number at the other driver (mixed)."""


@dataclass(frozen=True)
class Lanes:
    """What was registered."""

    devices: list[int]
    limits: dict[str, int]  # of lanes that have one, by key
    keys: list[str]


async def register(laneway: Laneway, lanes: int) -> Lanes:
    """Half of the devices virtual, half locks on MQTT. Some virtual ones fail the first attempt of everything."""
    half = lanes // 2
    made = Lanes([], {}, [])
    for driver, first, count in (("virtual", FIRST_VIRTUAL, half), ("mqtt", FIRST_LOCK, lanes - half)):
        for n in range(count):
            policy = dict(POLICIES[n % len(POLICIES)])
            key = _lane_key(policy.pop("lane", None), first, n)
            fields: dict[str, Any] = policy | {"laneKey": key}
            if driver == "virtual":
                fails = {"failFirst": 1} if "retry" in policy and n % 3 == 0 else {}
                fields["address"] = {"latencyMs": 10} | fails
            await laneway.register([first + n], driver, **fields)
            made.devices.append(first + n)
            made.keys.append(key)
            if "depthLimit" in policy:
                made.limits[key] = policy["depthLimit"]
    return made


def _lane_key(shared: str | None, first: int, n: int) -> str:
    at = n // len(POLICIES)
    if shared == "pair":
        return f"pair:{first}:{n % len(POLICIES)}:{at // 2}"
    return f"mixed:{n}" if shared == "mixed" else f"device:{first + n}"
