"""`laneway lane`: what is in flight, what waits, and why; hold, release, skip."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any
from urllib.parse import quote

import typer

from laneway_center.cli.client import Center
from laneway_center.cli.endings import group
from laneway_center.cli.options import (
    CENTER_URL,
    LimitOption,
    OperatorOption,
    OutputOption,
    ReasonOption,
    TenantOption,
    UrlOption,
    acting,
)
from laneway_center.cli.output import (
    Column,
    Output,
    age,
    cell,
    gathered,
    say,
    say_sentence,
    show,
    show_facts,
    show_table,
    span,
)

app = group("Look at lanes: explain, hold, release, skip.")
COLUMNS = (
    Column("lane", "laneKey"),
    Column("driver", "driver", cut=True, least=7),
    Column("state", "state"),
    Column("depth", "depth", right=True),
    Column("blocked", "blocked", right=True),
    Column("held by", "held", cut=True, least=12),
    Column("in flight", "inFlight"),
)
KeyArgument = Annotated[str, typer.Argument(metavar="LANE", help="Its key, such as device:1024.", show_default=False)]


class Order(StrEnum):
    """What comes first."""

    DEEPEST = "deepest"
    LONGEST_BLOCKED = "longest_blocked"


@app.command(name="list")
def list_(
    *,
    order: Annotated[Order, typer.Option(help="What comes first.")] = Order.DEEPEST,
    driver: Annotated[str | None, typer.Option(metavar="NAME", help="Only lanes of this driver service.")] = None,
    limit: LimitOption = 20,
    url: UrlOption = CENTER_URL,
    tenant: TenantOption = 1,
    output: OutputOption = Output.TABLE,
) -> None:
    """List lanes, deepest or longest blocked first."""
    with Center(url, tenant) as center:
        found = gathered("lanes", center.pages("/lanes", "lanes", limit, order=order.value, driver=driver))
    if output is Output.JSON:
        show({"lanes": found})
    elif found:
        show_table(COLUMNS, [_row(each) for each in found])
    else:
        say("No lane matches.")


def _row(lane: Mapping[str, Any]) -> dict[str, Any]:
    held = [f"{lane['operatorHold']}: {lane.get('operatorHoldReason')}"] if lane.get("operatorHold") else []
    if lane.get("reviewHolds"):
        held.append(f"{lane['reviewHolds']} in review")
    return {**lane, "blocked": span(lane.get("blockedFor")), "held": held, "inFlight": _in_flight(lane)}


def _in_flight(lane: Mapping[str, Any]) -> str | None:
    one = lane.get("inFlight")
    return None if not one else f"{one['status']} {age(one.get('since'))} {one['commandId']}"


@app.command()
def explain(
    lane: KeyArgument,
    *,
    url: UrlOption = CENTER_URL,
    tenant: TenantOption = 1,
    output: OutputOption = Output.TABLE,
) -> None:
    """Say what a lane is doing, and what would free it.

    What is in flight, what it waits for, what waits behind it, and which policies hold.
    """
    with Center(url, tenant) as center:
        found = center.get(f"/lanes/{quote(lane, safe='')}/explain")
    if output is Output.JSON:
        show(found)
        return
    say_sentence(found["says"])
    if found.get("wouldFree"):
        say_sentence(f"What frees it: {found['wouldFree']}")
    for more in (found.get("blockers") or ())[1:]:  # the first one is what was just said
        say_sentence(f"Also: {more['says']}. What frees it: {more['wouldFree']}")
    say("")
    show_facts({
        "lane": found["laneKey"],
        "driver": found.get("driver"),
        "state": found["state"],
        "in flight": _in_flight(found),
        "head": _command(found.get("head")),
        "waiting": found.get("waiting"),
        "by priority": _counts(found.get("waitingByPriority")),
        "next": [_command(each) for each in found.get("next") or ()],
        "reviews": [_command(each) for each in found.get("reviews") or ()],
        **{f"policy {name}": _policy(said) for name, said in (found.get("policies") or {}).items()},
    })  # fmt: skip


def _command(said: Any) -> str:
    """A command as its id, and its status where that is said too."""
    if isinstance(said, Mapping):
        return " ".join(str(said[name]) for name in ("commandId", "status") if said.get(name))
    return cell(said)


def _counts(said: Any) -> str:
    if isinstance(said, Mapping):
        return ", ".join(f"{priority}: {count}" for priority, count in said.items())
    return cell(said)


def _policy(said: Any) -> str:
    if isinstance(said, Mapping):
        if said.get("setBy") == "family":
            return "the device family's, else the center's"
        return f"{cell(said.get('value')) or 'none'} (by {said.get('setBy')})"
    return cell(said)


@app.command()
def hold(
    lane: KeyArgument,
    *,
    reason: ReasonOption = None,
    operator: OperatorOption = None,
    url: UrlOption = CENTER_URL,
    tenant: TenantOption = 1,
    output: OutputOption = Output.TABLE,
) -> None:
    """Send nothing more from this lane.

    Until it is released; what is in flight ends as it would.
    """
    _change(lane, "hold", "is held", (operator, reason), (url, tenant), output)


@app.command()
def release(
    lane: KeyArgument,
    *,
    reason: ReasonOption = None,
    operator: OperatorOption = None,
    url: UrlOption = CENTER_URL,
    tenant: TenantOption = 1,
    output: OutputOption = Output.TABLE,
) -> None:
    """End an operator's hold."""
    _change(lane, "release", "is released", (operator, reason), (url, tenant), output)


@app.command()
def skip(
    lane: KeyArgument,
    *,
    reason: ReasonOption = None,
    operator: OperatorOption = None,
    url: UrlOption = CENTER_URL,
    tenant: TenantOption = 1,
    output: OutputOption = Output.TABLE,
) -> None:
    """Let a lane go on past its head.

    A head that waits for its next attempt, or a review that closes the lane: that stays open, for a person to decide.
    """
    act = acting(operator, reason)
    with Center(url, tenant, act.operator) as center:
        path = f"/lanes/{quote(lane, safe='')}"
        holds = center.get(path)["reviewHolds"]
        found = center.post(f"{path}/skip", {"reason": act.reason})
    if output is Output.JSON:
        show(found)
    elif found["reviewHolds"] < holds:
        _tell(found, "goes on past a review, which stays open (laneway review list)")
    else:
        _tell(found, "goes on past its head")


def _tell(lane: Mapping[str, Any], done: str) -> None:
    say(f"Lane {lane['laneKey']} {done}: {lane['state']}, depth {lane['depth']}.")


def _change(
    lane: str, what: str, done: str, who: tuple[str | None, str | None], place: tuple[str, int], output: Output
) -> None:
    act = acting(*who)
    with Center(*place, act.operator) as center:
        found = center.post(f"/lanes/{quote(lane, safe='')}/{what}", {"reason": act.reason})
    if output is Output.JSON:
        show(found)
    else:
        _tell(found, done)
