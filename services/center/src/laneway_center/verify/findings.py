"""What a rule says when it is broken, and how its evidence reads."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from laneway_center.verify.facts import Command, Event, Execution, Facts, Lane


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What the checker lets pass."""

    slack: timedelta = timedelta(seconds=15)  # for polls, and for the time in which something was away
    clock_tolerance: timedelta = timedelta(seconds=1)  # between the database's clock and the journals'
    ageing: timedelta | None = None  # waiting that raises a priority by one; None: not known, so not judged


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One breach of a rule."""

    about: str  # a command, lane or execution
    says: str
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A rule by name. `check` is pure: the same facts and terms give the same findings."""

    name: str
    means: str  # one sentence
    check: Callable[[Facts, Terms], Iterator[Finding]]
    needs_journal: bool = False


def about_command(command: Command) -> str:
    """A command in a headline."""
    return f"command {command.command_id}"


def about_lane(lane: Lane) -> str:
    """A lane in a headline."""
    return f"lane {lane.key} of tenant {lane.tenant_id}"


def instant(at: datetime) -> str:
    """A time as evidence shows it."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f}Z"


def told(fact: Event | Execution) -> str:
    """A line of a timeline or journal."""
    if isinstance(fact, Execution):
        attempt = "unknown attempt" if fact.attempt is None else f"attempt {fact.attempt}"
        return f"{instant(fact.at)} executed by {fact.device}, {attempt} ({fact.journal}, {fact.place})"
    move = f"{fact.before} -> {fact.after}" if fact.moves else f"stays {fact.before}"
    token = "" if fact.lane_token is None else f", lane token {fact.lane_token}"
    window = "" if fact.start_by is None else f", start by {instant(fact.start_by)}"
    return f"{instant(fact.at)} event {fact.id} {fact.kind}, attempt {fact.attempt}: {move}{token}{window}"


def timeline(facts: Facts, command: Command) -> tuple[str, ...]:
    """The state changes of a command, oldest first."""
    return tuple(told(event) for event in facts.timelines[command.pk] if event.moves)
