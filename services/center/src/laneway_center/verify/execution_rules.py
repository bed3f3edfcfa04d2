"""Rules about what devices did: order in the lane, start windows, no unsafe command twice, answers that are true."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from laneway_center.verify.facts import CLAIMED, HANDED_OVER, RESOLVED, SENT_AGAIN, Command, Execution, Facts
from laneway_center.verify.findings import Finding, Terms, about_command, instant, timeline, told
from laneway_shared.lifecycle import Status

S = Status


class _Deed(NamedTuple):
    """An execution of a claimed attempt, with its place in the lane's order of dispatch."""

    token: int
    command: Command
    execution: Execution


class _Latest:
    """The latest-dispatched of the deeds seen so far, and the latest of another command than that one's."""

    def __init__(self) -> None:
        self._best: _Deed | None = None
        self._other: _Deed | None = None

    def add(self, deed: _Deed) -> None:
        best = self._best
        if best is None or deed.command.pk == best.command.pk:
            self._best = deed if best is None or deed.token > best.token else best
        elif deed.token > best.token:
            self._best, self._other = deed, best
        elif self._other is None or deed.token > self._other.token:
            self._other = deed

    def dispatched_after(self, deed: _Deed) -> _Deed | None:
        """A deed of another command that was dispatched later."""
        for one in (self._best, self._other):
            if one is not None and one.command.pk != deed.command.pk:
                return one if one.token > deed.token else None
        return None


def order(facts: Facts, terms: Terms) -> Iterator[Finding]:
    """Executions that came after one of a later-dispatched command of their lane.

    Not those of commands that freed the lane when they were handed over: two driver instances have two connections,
    and one may be faster. Within a journal its own order counts; between journals the times in them, less the
    tolerance for clocks.
    """
    lanes: dict[int, list[_Deed]] = defaultdict(list)
    for pk, executions in facts.executions.items():
        command = facts.commands[pk]
        for execution in executions:
            claim = facts.claims.get((pk, execution.attempt or 0))
            if claim is not None and claim.lane_token is not None:
                lanes[command.lane_id].append(_Deed(claim.lane_token, command, execution))
    for deeds in lanes.values():
        for deed, earlier in _overtaken(deeds, terms.clock_tolerance):
            if _freed_its_lane(facts, deed.command):
                continue
            says = f"attempt {deed.execution.attempt} acted after command {earlier.command.command_id}"
            yield Finding(
                about=about_command(deed.command),
                says=f"{says}, which was dispatched later",
                evidence=tuple(
                    line
                    for one in (earlier, deed)
                    for line in (told(facts.claims[one.command.pk, one.execution.attempt or 0]), told(one.execution))
                ),
            )


def _freed_its_lane(facts: Facts, command: Command) -> bool:
    """Whether the lane went on when it was handed over, before the device had done it."""
    handed_over = any(event.kind in HANDED_OVER for event in facts.timelines[command.pk])
    return command.frees_lane_unanswered and handed_over


def _overtaken(deeds: list[_Deed], tolerance: timedelta) -> Iterator[tuple[_Deed, _Deed]]:
    """Pairs (deed, the later-dispatched one that was done before it), at most one per deed."""
    in_journals: dict[str, _Latest] = defaultdict(_Latest)
    found: set[tuple[str, int]] = set()
    for deed in sorted(deeds, key=lambda one: one.execution.place):
        done = in_journals[deed.execution.journal]
        earlier = done.dispatched_after(deed)
        if earlier is not None:
            found.add((deed.execution.journal, deed.execution.place))
            yield deed, earlier
        done.add(deed)
    if len(in_journals) > 1:
        yield from _between_journals(deeds, tolerance, found)


def _between_journals(
    deeds: list[_Deed], tolerance: timedelta, found: set[tuple[str, int]]
) -> Iterator[tuple[_Deed, _Deed]]:
    in_time = sorted(deeds, key=lambda one: one.execution.at)
    done: dict[str, _Latest] = defaultdict(_Latest)
    past = 0
    for deed in in_time:
        while in_time[past].execution.at < deed.execution.at - tolerance:
            done[in_time[past].execution.journal].add(in_time[past])
            past += 1
        if (deed.execution.journal, deed.execution.place) in found:
            continue
        elsewhere = (other for journal, other in done.items() if journal != deed.execution.journal)
        earlier = next(filter(None, (other.dispatched_after(deed) for other in elsewhere)), None)
        if earlier is not None:
            yield deed, earlier


def unsafe_once(facts: Facts, terms: Terms) -> Iterator[Finding]:
    """Unsafe commands that devices executed more often than operators answer for."""
    for pk, known in facts.executions.items():
        command = facts.commands[pk]
        if not command.unsafe or len(known) == 1:
            continue
        executions = [one for one in known if one.attempt is None or not _is_news(facts, terms, pk, one)]
        allowed = 1 + sum(event.kind in SENT_AGAIN for event in facts.timelines[pk])
        if len(executions) > allowed:
            says = f"unsafe, executed {len(executions)} times; {allowed} would be right"
            evidence = (*map(told, executions), *timeline(facts, command))
            yield Finding(about=about_command(command), says=says, evidence=evidence)


def in_window(facts: Facts, terms: Terms) -> Iterator[Finding]:
    """Executions after the last moment at which their attempt could still act, or of attempts never claimed."""
    for pk, executions in facts.executions.items():
        command = facts.commands[pk]
        for execution in executions:
            if execution.attempt is None or _is_news(facts, terms, pk, execution):
                continue
            claim = facts.claims.get((pk, execution.attempt))
            if claim is None:
                says = f"attempt {execution.attempt} was executed, but never claimed"
                evidence = (told(execution), *timeline(facts, command))
                yield Finding(about=about_command(command), says=says, evidence=evidence)
            elif claim.start_by is not None:
                last = claim.start_by + command.call_timeout
                if execution.at > last + terms.clock_tolerance:
                    says = f"attempt {execution.attempt} acted after its last moment, {instant(last)}"
                    evidence = (told(claim), told(execution))
                    yield Finding(about=about_command(command), says=says, evidence=evidence)


def _is_news(facts: Facts, terms: Terms, pk: int, execution: Execution) -> bool:
    """Whether it belongs to an attempt that was claimed after the snapshot was taken."""
    return (pk, execution.attempt) not in facts.claims and _after_snapshot(facts, terms, execution)


def _after_snapshot(facts: Facts, terms: Terms, execution: Execution) -> bool:
    return execution.at >= facts.at - terms.clock_tolerance


@dataclass(frozen=True)
class Coverage:
    """The driver services whose devices' journals were given, each with the moment from which they are whole."""

    since: dict[str, datetime | None]  # None: from the beginning

    def holds(self, driver: str, at: datetime) -> bool:
        """Whether an execution by a device of this service at this time would be in a journal."""
        if driver not in self.since:
            return False
        since = self.since[driver]
        return since is None or at >= since


def coverage(facts: Facts) -> Coverage:
    """A service is covered if one of its devices is in a journal: journals are given for all its devices or none."""
    of_execution = {
        execution.command_id: facts.commands[pk].driver
        for pk, executions in facts.executions.items()
        for execution in executions
    }
    since: dict[str, datetime | None] = {}
    for journal in facts.journals:
        drivers = {of_execution.get(execution.command_id) for execution in journal.executions} - {None}
        for driver in map(str, drivers):
            since[driver] = _later(since.get(driver), journal.begins_at)
    return Coverage(since)


def _later(*instants: datetime | None) -> datetime | None:
    return max((instant for instant in instants if instant is not None), default=None)


def success_executed(facts: Facts, terms: Terms) -> Iterator[Finding]:
    """Commands reported as done that no device did. What an operator decided is the operator's word."""
    covered = coverage(facts)
    for command in facts.commands.values():
        if command.status != S.SUCCESS or command.pk in facts.executions or not command.ack_expected:
            continue
        events = facts.timelines[command.pk]
        if any(event.kind == RESOLVED for event in events):
            continue
        claims = [event.at for event in events if event.kind == CLAIMED]
        if claims and covered.holds(command.driver, min(claims) - terms.clock_tolerance):
            evidence = timeline(facts, command)
            yield Finding(about=about_command(command), says="SUCCESS, but no device executed it", evidence=evidence)


def expired_not_executed(facts: Facts, _: Terms) -> Iterator[Finding]:
    """Commands reported as never tried that a device did all the same."""
    for pk, executions in facts.executions.items():
        command = facts.commands[pk]
        attempt = _attempt_at_expiry(facts, pk)
        done = [execution for execution in executions if attempt is not None and (execution.attempt or 0) <= attempt]
        if done:
            evidence = (*map(told, done), *timeline(facts, command))
            yield Finding(about=about_command(command), says="EXPIRED, but a device executed it", evidence=evidence)


def withdrawn_not_executed(facts: Facts, terms: Terms) -> Iterator[Finding]:
    """Executions of commands that had been cancelled or superseded: those were waiting, so nothing was to come."""
    for pk, executions in facts.executions.items():
        command = facts.commands[pk]
        if command.status not in (S.CANCELLED, S.SUPERSEDED):
            continue
        ended = next((event for event in facts.timelines[pk] if event.moves and event.after == command.status), None)
        late = [each for each in executions if ended is not None and each.at > ended.at + terms.clock_tolerance]
        if late:
            says = f"a device executed it after it was {command.status}"
            evidence = (*timeline(facts, command), *map(told, late))
            yield Finding(about=about_command(command), says=says, evidence=evidence)


def _attempt_at_expiry(facts: Facts, pk: int) -> int | None:
    """The newest attempt that an EXPIRED speaks about; None: it never expired."""
    newest, at_expiry = 0, None
    for event in facts.timelines[pk]:
        if event.kind == CLAIMED:
            newest = event.attempt
        elif event.moves and event.after == S.EXPIRED:
            at_expiry = newest
    return at_expiry


def strangers(facts: Facts, terms: Terms) -> Iterator[Finding]:
    """Executions by known devices of commands that the database doesn't have."""
    for execution in facts.strangers:
        if execution.device not in facts.device_sns or _after_snapshot(facts, terms, execution):
            continue
        if facts.since is None or execution.at >= facts.since + terms.clock_tolerance:
            says = "was executed, but is not in the database"
            yield Finding(about=f"command {execution.command_id}", says=says, evidence=(told(execution),))
