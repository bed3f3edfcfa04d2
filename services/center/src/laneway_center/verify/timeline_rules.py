"""Rules about the tables alone: bounds, transitions, one in flight, claims, the lanes' books."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from datetime import datetime
from itertools import product

from laneway_center.verify.facts import BY_OPERATOR, CLAIMED, STORED, Command, Event, Facts
from laneway_center.verify.findings import Finding, Terms, about_command, about_lane, instant, timeline, told
from laneway_shared.lifecycle import (
    FINAL,
    OPERATOR_TRANSITIONS,
    TRANSITIONS,
    WAITING,
    Gate,
    RetryPlace,
    Status,
    holds_lane,
)

S = Status
_HOLDS = {(str(s), str(g), str(r)): holds_lane(s, g, r) for s, g, r in product(Status, Gate, RetryPlace)}
_WITHDRAWN = (S.CANCELLED, S.SUPERSEDED)
_BY_ITSELF: Mapping[str, frozenset[Status]] = {str(source): targets for source, targets in TRANSITIONS.items()}
_BY_OPERATOR: Mapping[str, frozenset[Status]] = {
    str(source): targets for source, targets in OPERATOR_TRANSITIONS.items()
}


def ended(facts: Facts, terms: Terms) -> Iterator[Finding]:
    """Commands that should have ended by now."""
    for command in facts.commands.values():
        if command.status in FINAL or command.status == S.MANUAL_REVIEW:
            continue
        bound = _bound(command)
        if bound is None or facts.at > bound + terms.slack:
            since = "it has no bound" if bound is None else f"its bound was {instant(bound)}"
            says = f"still {command.status} at {instant(facts.at)}; {since}"
            yield Finding(about=about_command(command), says=says, evidence=timeline(facts, command))


def _bound(command: Command) -> datetime | None:
    if command.status in WAITING:
        return command.expire_at
    if command.status in (S.DISPATCHING, S.SENT):
        return command.quiet_at
    if command.ack_due_at is None or command.quiet_at is None:
        return None
    return max(command.ack_due_at, command.quiet_at)


def transitions(facts: Facts, _: Terms) -> Iterator[Finding]:
    """Timelines that don't hang together, or hold a change nobody may make."""
    for command in facts.commands.values():
        state: str | None = None
        about = about_command(command)
        for event in facts.timelines[command.pk]:
            if state is None:
                if (event.kind, event.before, event.after) != (STORED, None, S.PENDING):
                    yield Finding(about=about, says="its timeline doesn't begin with STORED", evidence=(told(event),))
            elif event.before != state:
                says = f"an event starts from {event.before}, but it was {state}"
                yield Finding(about=about, says=says, evidence=timeline(facts, command))
            elif event.moves and not _may(command, event):
                says = f"{event.before} -> {event.after} by {event.kind} is no allowed transition"
                yield Finding(about=about, says=says, evidence=timeline(facts, command))
            state = event.after or state
        if state != command.status:
            says = f"its row is {command.status}, its timeline ends with {state or 'nothing'}"
            yield Finding(about=about, says=says, evidence=timeline(facts, command))


def _may(command: Command, event: Event) -> bool:
    if event.after in _WITHDRAWN and event.kind != event.after:
        return False  # no evidence withdraws a command
    if event.kind not in BY_OPERATOR:
        return event.after in _BY_ITSELF.get(event.before or "", ())
    if event.before == S.TIMEOUT and command.unsafe:
        return False
    return event.after in _BY_OPERATOR.get(event.before or "", ())


def one_in_flight(facts: Facts, _: Terms) -> Iterator[Finding]:
    """Moments at which two commands held a lane. Writers lock the lane, so event ids are its order."""
    holders: dict[int, dict[int, Event]] = defaultdict(dict)  # lane -> command -> the event that let it hold
    for event in facts.events:
        if event.after is None:
            continue
        command = facts.commands[event.command_pk]
        holding = holders[command.lane_id]
        if not _holds(command, event.after):
            holding.pop(command.pk, None)
        elif command.pk not in holding:
            for other, since in holding.items():
                first = facts.commands[other]
                says = f"took {_lane_name(facts, command)} while command {first.command_id} held it"
                yield Finding(about=about_command(command), says=says, evidence=(told(since), told(event)))
            holding[command.pk] = event


def _holds(command: Command, status: str) -> bool:
    return _HOLDS.get((status, command.gate, command.retry), False)


def _lane_name(facts: Facts, command: Command) -> str:
    lane = facts.lanes.get(command.lane_id)
    return f"lane {lane.key}" if lane else f"lane {command.lane_id}"


def lane_books(facts: Facts, _: Terms) -> Iterator[Finding]:
    """Lanes whose depth, holder, state or holds by review are not what their commands say."""
    waiting: Counter[int] = Counter()
    closing: Counter[int] = Counter()
    holders: dict[int, list[Command]] = defaultdict(list)
    for command in facts.commands.values():
        waiting[command.lane_id] += command.status in WAITING
        closing[command.lane_id] += command.review_hold and command.status == S.MANUAL_REVIEW
        if _holds(command, command.status):
            holders[command.lane_id].append(command)
    for lane in facts.lanes.values():
        holding = holders[lane.lane_id]
        in_flight = any(command.status not in WAITING for command in holding)
        state = "busy" if in_flight else "ready" if waiting[lane.lane_id] else "idle"
        books: list[tuple[str, object, object]] = [
            ("depth", lane.depth, waiting[lane.lane_id]),
            ("state", lane.state, state),
            ("review_holds", lane.review_holds, closing[lane.lane_id]),
        ]
        if [lane.holder_id] != [command.pk for command in holding] and (holding or lane.holder_id is not None):
            books.append(("holder", lane.holder_id, ", ".join(str(command.pk) for command in holding) or None))
        wrong = [
            f"{name} is {written}, its commands say {counted}" for name, written, counted in books if written != counted
        ]
        if wrong:
            evidence = tuple(f"row {command.pk} {command.command_id} is {command.status}" for command in holding)
            yield Finding(about=about_lane(lane), says="; ".join(wrong), evidence=evidence)


def claimed_once(facts: Facts, _: Terms) -> Iterator[Finding]:
    """Attempts that are missing or were claimed twice, and lane tokens that don't grow."""
    for command in facts.commands.values():
        claims = [event for event in facts.timelines[command.pk] if event.kind == CLAIMED]
        evidence = tuple(map(told, claims))
        numbers = [event.attempt for event in claims]
        if numbers != list(range(1, command.attempt + 1)):
            listed = ", ".join(map(str, numbers)) or "none"
            says = f"its row counts {command.attempt} attempts, claimed were {listed}"
            yield Finding(about=about_command(command), says=says, evidence=evidence)
        if any(event.lane_token is None or event.start_by is None for event in claims):
            says = "a claim doesn't name its lane token and start window"
            yield Finding(about=about_command(command), says=says, evidence=evidence)
    yield from _tokens(facts)


def _tokens(facts: Facts) -> Iterator[Finding]:
    newest: dict[int, Event] = {}
    for event in facts.events:
        if event.kind != CLAIMED or event.lane_token is None:
            continue
        command = facts.commands[event.command_pk]
        last = newest.get(command.lane_id)
        if last is not None and event.lane_token <= (last.lane_token or 0):
            says = f"was claimed with lane token {event.lane_token} after token {last.lane_token}"
            yield Finding(about=about_command(command), says=says, evidence=(told(last), told(event)))
        else:
            newest[command.lane_id] = event
    for lane in facts.lanes.values():
        last = newest.get(lane.lane_id)
        if last is not None and (last.lane_token or 0) > lane.token:
            says = f"its token is {lane.token}, but token {last.lane_token} was given out"
            yield Finding(about=about_lane(lane), says=says, evidence=(told(last),))
