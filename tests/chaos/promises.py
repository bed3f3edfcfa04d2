"""What callers were told, held against what is stored."""

from collections import Counter
from collections.abc import Mapping

from chaos.load import Load
from chaos.people import People
from laneway_center.verify.facts import STORED, Facts
from laneway_shared.lifecycle import WAITING, Status


def broken_promises(facts: Facts, load: Load, people: People, limits: Mapping[str, int]) -> list[str]:
    """Accepted and lost, refused and stored, cancelled and not so, lanes filled beyond their bounds."""
    status = {command.command_id: command.status for command in facts.commands.values()}
    return [
        *(f"{one} was accepted and is lost" for one in load.accepted if one not in status),
        *(f"{one} was refused and is stored" for one in load.refused if one in status),
        *(
            f"{one} was cancelled and is {status.get(one)}"
            for one in people.cancelled
            if status.get(one) != Status.CANCELLED
        ),
        *_overfull(facts, limits),
    ]


def _overfull(facts: Facts, limits: Mapping[str, int]) -> list[str]:
    """Submits that made a lane deeper than it may be. What comes back to wait may do so."""
    bounds = {lane.lane_id: limits[lane.key] for lane in facts.lanes.values() if lane.key in limits}
    states: dict[int, str | None] = {}
    waiting: Counter[int] = Counter()
    deepest: Counter[int] = Counter()  # after anything but a submit
    found = []
    for event in facts.events:
        lane = facts.commands[event.command_pk].lane_id
        waiting[lane] += (event.after in WAITING) - (states.get(event.command_pk) in WAITING)
        states[event.command_pk] = event.after
        if event.kind != STORED:
            deepest[lane] = max(deepest[lane], waiting[lane])
        elif lane in bounds and waiting[lane] > max(bounds[lane], deepest[lane]):
            found.append(f"{waiting[lane]} wait in lane {facts.lanes[lane].key}, which may have {bounds[lane]}")
    return found
