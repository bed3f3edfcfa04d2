"""Which faults, when, for how long: made from a seed, so that a run can be made again."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What is done to a target."""

    KILL = "kill"
    """SIGKILL, started again after a while."""
    STOP = "stop"
    """Asked to end, started again after a while."""
    FREEZE = "freeze"
    """SIGSTOP, SIGCONT after a while."""
    CUT = "cut"
    """All network connections to a server reset, and refused for a while."""
    SLOW = "slow"
    """Every chunk on the network to a server held up for a while."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault."""

    at_s: float  # since the load began
    kind: Kind
    target: str
    lasts_s: float

    def __str__(self) -> str:
        return f"{self.at_s:7.1f} s  {self.kind} {self.target} for {self.lasts_s:.1f} s"


SERVICES = (
    "center",
    "center-2",
    "driver-virtual",
    "driver-virtual-2",
    "driver-mqtt",
    "driver-mqtt-2",
    "ack-listener",
)
SERVERS = ("rabbitmq", "postgres", "mosquitto")
_CHOICES: Sequence[tuple[float, Kind, Sequence[str], tuple[float, float]]] = (
    # weight, kind, targets, least and most seconds
    (5, Kind.KILL, SERVICES, (0.0, 4.0)),
    (2, Kind.STOP, SERVICES, (0.0, 4.0)),
    (4, Kind.FREEZE, SERVICES, (0.5, 22.0)),  # past the start window, and past grace
    (1, Kind.STOP, SERVERS, (0.0, 5.0)),
    (1, Kind.KILL, SERVERS, (0.0, 5.0)),
    (3, Kind.CUT, SERVERS, (0.0, 4.0)),
    (2, Kind.SLOW, SERVERS, (1.0, 6.0)),
)


def make_plan(seed: int, faults: int, seconds: float) -> list[Fault]:
    """So many faults over so many seconds, in the order of their times."""
    chance = random.Random(seed)
    plan = []
    for _ in range(faults):
        weights = [choice[0] for choice in _CHOICES]
        _, kind, targets, (least, most) = chance.choices(_CHOICES, weights)[0]
        plan.append(
            Fault(
                at_s=round(chance.uniform(1, seconds), 1),
                kind=kind,
                target=chance.choice(targets),
                lasts_s=round(chance.uniform(least, most), 1),
            )
        )
    return sorted(plan, key=lambda fault: fault.at_s)
