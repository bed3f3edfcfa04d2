"""Why a lane stands where it stands, and what would move it. Pure: facts in, sentences out."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import RowMapping

from laneway_center.store.lanes import LaneFacts
from laneway_shared.lifecycle import Status


@dataclass(frozen=True)
class Blocker:
    """One thing that keeps a lane from sending, and what would take it away."""

    kind: str
    says: str
    would_free: str


def blockers(facts: LaneFacts, *, capacity_lead: float) -> list[Blocker]:
    """What the lane waits for, the first thing first; empty: it is free.

    Args:
        facts: as the store read them.
        capacity_lead: how much more than its capacity a driver service is sent, as a share of it.
    """
    return list(_blockers(facts, capacity_lead))


def _blockers(facts: LaneFacts, lead: float) -> Iterator[Blocker]:
    lane, holder = facts.lane, facts.holder
    if holder is not None and holder["status"] != Status.RETRY_WAIT:
        yield from _in_flight(facts, holder)
    if lane["operator_hold"] is not None:
        yield Blocker(
            "operator_hold",
            f"{lane['operator_hold']} holds it since {_time(lane['operator_hold_at'])}: {lane['operator_hold_reason']}",
            "an operator's release",
        )
    if lane["review_holds"]:
        named = ", ".join(row["command_id"] for row in facts.reviews[: lane["review_holds"]])
        yield Blocker(
            "review",
            f"{lane['review_holds']} open review(s) close it: {named}",
            "each review's decision, late evidence about it, or an operator's skip",
        )
    head = holder if holder is not None and holder["status"] == Status.RETRY_WAIT else _first(facts)
    if head is not None and not (holder is not None and holder is not head):
        yield from _head(facts, head, lead)


def _in_flight(facts: LaneFacts, holder: RowMapping) -> Iterator[Blocker]:
    name = f"attempt {holder['attempt']} of {holder['command_id']}"
    if holder["status"] == Status.AWAITING_ACK:
        last = max(each for each in (holder["ack_due_at"], holder["quiet_at"]) if each is not None)
        yield Blocker(
            "awaiting_answer",
            f"{name} is with the device since {_time(holder['update_time'])}; its answer is due at "
            f"{_time(holder['ack_due_at'])}",
            f"the device's answer, or at {_time(last)} the want of one",
        )
        yield from _listener(facts, holder)
    else:
        yield Blocker(
            "in_flight",
            f"{name} is on its way to driver {facts.lane['driver']} since {_time(holder['claimed_at'])} "
            f"({holder['status']})",
            f"the driver's result, or at {_time(holder['quiet_at'])} the want of one",
        )
        yield from _driver(facts)


def _head(facts: LaneFacts, head: RowMapping, lead: float) -> Iterator[Blocker]:
    if head["next_visible_at"] is not None and head["next_visible_at"] > head["now"]:
        yield Blocker(
            "back_off",
            f"{head['command_id']} waits until {_time(head['next_visible_at'])} for attempt {head['attempt'] + 1}",
            f"that time, its deadline at {_time(head['expire_at'])}, a cancel, or an operator's skip",
        )
    yield from _driver(facts)
    yield from _registration(facts, head)
    if head["ack_expected"]:
        yield from _listener(facts, head)
    driver = facts.driver
    if driver is not None and driver["online"] and driver["in_flight"] >= round(driver["capacity"] * (1 + lead)):
        yield Blocker(
            "no_room",
            f"driver {driver['name']} has {driver['in_flight']} commands on their way, which is what its "
            f"{driver['online']} instance(s) have room for",
            "any result of that driver, or another instance of it",
        )


def _driver(facts: LaneFacts) -> Iterator[Blocker]:
    driver = facts.driver
    if driver is None:
        yield Blocker("driver_unknown", f"driver {facts.lane['driver']} is not registered", "its registration")
        return
    if not driver["enabled"]:
        yield Blocker("driver_disabled", f"driver {driver['name']} is disabled", "enabling it in the registry")
    if not driver["online"]:
        seen = "never" if driver["last_seen"] is None else _time(driver["last_seen"])
        yield Blocker(
            "driver_offline",
            f"driver {driver['name']} has no live instance; the last heartbeat was {seen}",
            "an instance of it that comes back",
        )


def _registration(facts: LaneFacts, head: RowMapping) -> Iterator[Blocker]:
    if head["device_enabled"] is False:
        yield Blocker("device_disabled", f"device {head['device_id']} is disabled", "enabling it in the registry")
    if head["point_enabled"] is False:
        yield Blocker("point_disabled", f"point {head['point']} is disabled", "enabling it in the registry")
    if head["device_driver"] is not None and head["device_driver"] != facts.lane["driver"]:
        yield Blocker(
            "driver_changes", f"its next device is at driver {head['device_driver']}", "the next look of a dispatcher"
        )


def _listener(facts: LaneFacts, command: RowMapping) -> Iterator[Blocker]:
    profile = command["profile"]
    live = () if facts.driver is None else facts.driver["profiles"]
    if profile is not None and profile not in live:
        yield Blocker(
            "listener_offline",
            f"no live ack-listener listens for answers of {profile} devices",
            "an ack-listener for that profile",
        )


def headline(facts: LaneFacts, found: list[Blocker]) -> tuple[str, str | None]:
    """One sentence of what the lane does, and one of what would free it."""
    if found:
        return found[0].says, found[0].would_free
    first = _first(facts)
    if first is not None:
        return f"free; {first['command_id']} goes next, at the next look of a dispatcher", None
    return "free; nothing waits", None


def _first(facts: LaneFacts) -> RowMapping | None:
    """The next one whose time has come, or else the one whose time comes next."""
    visible = [row for row in facts.waiting if row["next_visible_at"] is None or row["next_visible_at"] <= row["now"]]
    if visible:
        return visible[0]
    return min(facts.waiting, key=lambda row: row["next_visible_at"], default=None)


def _time(at: datetime | Any) -> str:
    return at.isoformat(timespec="seconds").replace("+00:00", "Z") if isinstance(at, datetime) else str(at)
