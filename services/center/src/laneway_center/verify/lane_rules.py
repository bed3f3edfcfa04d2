"""Rules about whose turn it is in a lane: urgency and age, holds, intents, what is withdrawn and for whom.

Whoever stores, claims, withdraws, skips or frees in a lane has its row locked, so event ids are the lane's order.
"""

from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime, timedelta
from math import floor

from laneway_center.verify.facts import CLAIMED, HOLD, SENT_AGAIN, SKIPPED, STORED, Command, Event, Facts, Lane
from laneway_center.verify.findings import Finding, Terms, about_command, about_lane, timeline, told
from laneway_shared.lifecycle import FINAL, WAITING, RetryPlace, Status

S = Status
ROUNDING = timedelta(milliseconds=1)  # of ages, in the database
REVOKE, LATEST = "revoke", "latest"


def _last_skips(facts: Facts) -> dict[int, int]:
    """The last skip of each waiting command: what its row says of priority and retry holds from that event on."""
    return {event.command_pk: event.id for event in facts.events if event.kind == SKIPPED and event.after in WAITING}


# ------------------------------------------------------------------------------------------- turns
def lane_order(facts: Facts, terms: Terms) -> Iterator[Finding]:
    """Claims past a command that was waiting longer and no less urgent, or (ageing known) had the earlier turn by it.

    Only what was PENDING counts as passed: when a retry may go is not in the timeline.
    """
    turns = _Turns(facts, terms.ageing)
    for event in facts.events:
        if event.kind == CLAIMED:
            passed = turns.passed_by(event)
            if passed is not None:
                command, first = facts.commands[event.command_pk], facts.commands[passed.command_pk]
                says = f"was claimed past command {first.command_id} (priority {first.priority}), which waited"
                evidence = (told(passed), told(turns.placed[command.pk]), told(event))
                says = f"of priority {command.priority}, {says}"
                yield Finding(about=about_command(command), says=says, evidence=evidence)
        turns.follow(event)


class _Turns:
    """Who waits in each lane, by priority, in the order of their places."""

    def __init__(self, facts: Facts, ageing: timedelta | None) -> None:
        self._facts, self._ageing = facts, ageing
        self.placed: dict[int, Event] = {}  # command -> the event that gave it its place
        self._waiting: dict[int, dict[int, dict[int, Event]]] = defaultdict(lambda: defaultdict(dict))
        self._restless: dict[int, dict[int, int]] = defaultdict(dict)  # retries whose age isn't that of their place
        self._last_skip = _last_skips(facts)
        # the deadline before it is not known any more
        self._last_sent_again = {event.command_pk: event.id for event in facts.events if event.kind in SENT_AGAIN}

    def follow(self, event: Event) -> None:
        """Take notice of an event."""
        command = self._facts.commands[event.command_pk]
        lane, pk = self._waiting[command.lane_id], command.pk
        if event.after in WAITING and (event.moves or event.kind == SKIPPED):
            self._leaves(command)
            self.placed[pk] = event
            if event.after == S.PENDING and event.id >= self._last_sent_again.get(pk, 0):
                lane[command.priority][pk] = event
        elif event.after not in WAITING:
            self._leaves(command)
        elif event.after == S.RETRY_WAIT:
            self._restless[command.lane_id][pk] = command.priority

    def _leaves(self, command: Command) -> None:
        self._waiting[command.lane_id][command.priority].pop(command.pk, None)
        self._restless[command.lane_id].pop(command.pk, None)

    def passed_by(self, claim: Event) -> Event | None:
        """The place of a command whose turn it was instead."""
        command = self._facts.commands[claim.command_pk]
        own = self.placed.get(command.pk)
        if own is None or claim.id < self._last_skip.get(command.pk, 0):
            return None
        if claim.before == S.RETRY_WAIT and command.retry == RetryPlace.STRICT:
            return None  # it had kept the lane
        for priority, level in self._waiting[command.lane_id].items():
            if priority != command.priority and priority in self._restless[command.lane_id].values():
                continue
            first = self._first(level, claim.at)
            if first is not None and self._goes_before((priority, first), (command.priority, own), claim.at):
                return first
        return None

    def _first(self, level: dict[int, Event], at: datetime) -> Event | None:
        while level:
            pk, first = next(iter(level.items()))
            if self._facts.commands[pk].expire_at > at:
                return first
            del level[pk]  # too late for this and all later claims
        return None

    def _goes_before(self, one: tuple[int, Event], other: tuple[int, Event], at: datetime) -> bool:
        """Whether a pending command must go before another, whatever can't be seen."""
        (priority, place), (others_priority, others_place) = one, other
        if priority <= others_priority and place.id < others_place.id:
            return True  # more urgent, and waiting longer: ageing can't turn that round
        if self._ageing is None:
            return False
        at_most = _aged(priority, at - place.at - ROUNDING, self._ageing)
        at_least = _aged(others_priority, at - others_place.at + ROUNDING, self._ageing)
        return (at_most, place.id) < (at_least, others_place.id)


def _aged(priority: int, waited: timedelta, ageing: timedelta) -> int:
    return max(0, priority - floor(waited / ageing))


# ------------------------------------------------------------------------------------------- holds
def held(facts: Facts, _: Terms) -> Iterator[Finding]:
    """Claims in a lane that an operator or a review held, and marks that aren't what was done last."""
    yield from _held_by_operators(facts)
    yield from _held_by_reviews(facts)


def _held_by_operators(facts: Facts) -> Iterator[Finding]:
    claims: dict[int, list[Event]] = defaultdict(list)
    for event in facts.claims.values():
        claims[facts.commands[event.command_pk].lane_id].append(event)
    for lane in facts.lanes.values():
        held_since: int | None = None  # the lane's token then
        is_held = None
        periods: list[tuple[int, int | None]] = []
        for act in facts.acts.get((lane.tenant_id, lane.key), ()):
            is_held = act.action == HOLD
            if is_held:
                held_since = act.token
            elif held_since is not None and act.token is not None:
                periods.append((held_since, act.token))
                held_since = None
        if held_since is not None:
            periods.append((held_since, None))
        if is_held is not None and is_held != (lane.operator_hold is not None):
            says = f"its last act was a {'hold' if is_held else 'release'}, its mark is {lane.operator_hold}"
            yield Finding(about=about_lane(lane), says=says)
        for claim in claims[lane.lane_id] if periods else ():
            yield from _claimed_in(periods, claim, lane, facts)


def _claimed_in(periods: list[tuple[int, int | None]], claim: Event, lane: Lane, facts: Facts) -> Iterator[Finding]:
    token = claim.lane_token
    for held_since, until in periods:
        if token is not None and held_since < token and (until is None or token <= until):
            says = f"was claimed while an operator held lane {lane.key}: held at token {held_since}, " + (
                "not released" if until is None else f"released at {until}"
            )
            yield Finding(about=about_command(facts.commands[claim.command_pk]), says=says, evidence=(told(claim),))


def _held_by_reviews(facts: Facts) -> Iterator[Finding]:
    closing: dict[int, dict[int, Event]] = defaultdict(dict)  # lane -> command in review -> since
    for event in facts.events:
        command = facts.commands[event.command_pk]
        holds = closing[command.lane_id]
        if event.moves and event.after == S.MANUAL_REVIEW:
            if command.review_policy == "hold":
                holds[command.pk] = event
        elif event.moves or event.kind == SKIPPED:
            holds.pop(command.pk, None)
        if event.kind == CLAIMED:
            for pk, since in holds.items():
                says = f"was claimed while the review of command {facts.commands[pk].command_id} held its lane"
                yield Finding(about=about_command(command), says=says, evidence=(told(since), told(event)))


# ----------------------------------------------------------------------------------------- intents
def intents(facts: Facts, _: Terms) -> Iterator[Finding]:
    """Commands that went on waiting though a newer one of their intent was there to end them."""
    open_: dict[tuple[int, int, str], dict[int, str]] = defaultdict(dict)  # intent -> command -> state
    last_skip = _last_skips(facts)
    for event in facts.events:
        command = facts.commands[event.command_pk]
        if command.intent_key is None or event.after is None:
            continue
        same = open_[command.lane_id, command.device_id, command.intent_key]
        if event.kind == STORED:
            for pk, state in same.items():
                older = facts.commands[pk]
                relaxed = older.retry == RetryPlace.RELAXED and event.id > last_skip.get(pk, 0)
                why = _ends_waiting(event, command, older, state, relaxed=relaxed)
                if why is not None:
                    says = f"still waited when command {command.command_id} came, {why}"
                    evidence = (*timeline(facts, older), told(event))
                    yield Finding(about=about_command(older), says=says, evidence=evidence)
        relaxed = command.retry == RetryPlace.RELAXED and event.id > last_skip.get(command.pk, 0)
        if _goes_behind(event, relaxed=relaxed):
            newer = next((pk for pk in same if pk > command.pk), None)
            if newer is not None and not _superseded_next(facts, event):
                says = f"goes behind command {facts.commands[newer].command_id}, a newer one of its intent"
                yield Finding(about=about_command(command), says=says, evidence=(told(event),))
        if event.after in FINAL:
            same.pop(command.pk, None)
        else:
            same[command.pk] = event.after


def _ends_waiting(stored: Event, newer: Command, older: Command, state: str, *, relaxed: bool) -> str | None:
    """Why an open command of the same intent had to end when this one was stored."""
    if state not in WAITING:
        return None
    if newer.purpose == REVOKE and older.purpose != REVOKE:
        return "which revokes it"
    if stored.merge == LATEST:
        return "which replaces what waits of its intent"
    if state == S.RETRY_WAIT and relaxed:
        return "which would run before its retry"
    return None


def _goes_behind(event: Event, *, relaxed: bool) -> bool:
    """Whether it gave up its place."""
    if event.kind == SKIPPED:
        return event.after in WAITING
    return relaxed and event.moves and event.after == S.RETRY_WAIT


def _superseded_next(facts: Facts, event: Event) -> bool:
    following = (each for each in facts.timelines[event.command_pk] if each.id > event.id)
    after = next(following, None)
    return after is not None and after.kind == S.SUPERSEDED


# --------------------------------------------------------------------------------------- withdrawn
def withdrawn(facts: Facts, _: Terms) -> Iterator[Finding]:
    """Commands that were given up for nobody, or may not be given up."""
    by_id = {(command.tenant_id, command.command_id): command for command in facts.commands.values()}
    for command in facts.commands.values():
        if command.status != S.SUPERSEDED:
            continue
        says = None
        if command.error_code == "DROPPED" and command.unsafe:
            says = "is unsafe, and was given up because its lane was full"
        else:
            event = next((e for e in reversed(facts.timelines[command.pk]) if e.kind == S.SUPERSEDED), None)
            if event is not None and event.newer is not None:
                newer = by_id.get((command.tenant_id, event.newer))
                fault = _no_successor(facts, command, event, newer)
                says = fault and f"was superseded ({command.error_code}) for command {event.newer}, which {fault}"
        if says is not None:
            yield Finding(about=about_command(command), says=says, evidence=timeline(facts, command))


def _no_successor(facts: Facts, command: Command, event: Event, newer: Command | None) -> str | None:
    """Why a command can't be the one that another was superseded for."""
    if newer is None:
        return "is not in the database"
    stored = facts.timelines[newer.pk][:1]
    if not stored or stored[0].id < event.id:
        return "was stored before"
    if newer.lane_id != command.lane_id:
        return "is in another lane"
    if command.error_code in ("REPLACED", "REVOKED") and (
        (newer.device_id, newer.intent_key) != (command.device_id, command.intent_key)
    ):
        return "has another intent"
    if command.error_code == "REVOKED" and (newer.purpose != REVOKE or command.purpose == REVOKE):
        return "doesn't revoke it"
    return None
