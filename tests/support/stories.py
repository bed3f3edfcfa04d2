"""Hand-made histories for the checker: told step by step, with the rows and books that follow from them."""

from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from typing import Any

from laneway_center.verify import rules
from laneway_center.verify.facts import Act, Command, Event, Execution, Facts, Journal, Lane
from laneway_center.verify.findings import Finding, Terms
from laneway_shared.lifecycle import WAITING, Gate, RetryPlace, Status, holds_lane

T0 = datetime(2026, 1, 1, tzinfo=UTC)
WINDOW, CALL, GRACE, ACK = (timedelta(seconds=n) for n in (10, 5, 5, 10))
MUCH_LATER = T0 + timedelta(days=1)


def uuid_of(name: str) -> str:
    """The id of a command told of by this name, of six letters at most."""
    return f"00000000-0000-7000-8000-{name.encode().hex():>012}"


class Story:
    """Tells a history step by step, a second each, and derives rows and books from it."""

    def __init__(self) -> None:
        self.now = T0
        self.commands: dict[str, dict[str, Any]] = {}
        self.events: list[Event] = []
        self.executions: list[Execution] = []
        self._states: dict[str, str] = {}
        self._attempts: Counter[str] = Counter()
        self._tokens: Counter[int] = Counter()
        self._acts: list[tuple[int, int, Act]] = []  # after so many events, in this lane
        self._rewritten: list[tuple[int, str, dict[str, Any]]] = []  # columns changed by the event of this number
        self._within: set[int] = set()  # counts of events in the middle of a transaction

    @property
    def moments(self) -> list[int]:
        """Counts of events after which a snapshot may be taken."""
        return [n for n in range(1, len(self.events) + 1) if n not in self._within]

    def store(self, *names: str, lane: int = 1, merge: str | None = None, **fields: Any) -> "Story":
        """Commands are accepted."""
        for name in names:
            usual = {
                "pk": len(self.commands) + 1,
                "command_id": uuid_of(name),
                "tenant_id": 1,
                "lane_id": lane,
                "driver": "virtual",
                "device_sn": f"SN{lane}",
                "gate": "ack",
                "retry": "strict",
                "unsafe": False,
                "ack_expected": True,
                "call_timeout": CALL,
                "expire_at": T0 + timedelta(hours=1),
            }
            self.commands[name] = usual | fields
            self.move(name, "PENDING", "STORED", merge=merge)
        return self

    def move(self, name: str, after: str, kind: str = "SUCCESS", **fields: Any) -> "Story":
        """Evidence changes a command's state, or is noted."""
        self.now += timedelta(seconds=1)
        usual = {
            "id": len(self.events) + 1,
            "command_pk": self.commands[name]["pk"],
            "at": self.now,
            "before": self._states.get(name),
            "after": after,
            "attempt": self._attempts[name],
            "kind": kind,
        }
        self.events.append(Event(**usual | fields))
        self._states[name] = after
        return self

    def give_up(self, name: str, newer: str | None, code: str = "REPLACED") -> "Story":
        """It is superseded, in the transaction that stores the newer one next (None: in that of the event before)."""
        self._within.add(len(self.events) + (1 if newer else 0))
        told = None if newer is None else uuid_of(newer)
        self.move(name, "SUPERSEDED", "SUPERSEDED", newer=told)
        return self._rewrite(name, error_code=code)

    def skip(self, name: str, priority: int = 1) -> "Story":
        """An operator puts it behind the others, or lets the lane go on past its review."""
        state = self._states[name]
        self.move(name, state, "SKIPPED")
        if state == "MANUAL_REVIEW":
            return self._rewrite(name, review_hold=False)
        return self._rewrite(name, priority=priority, **({"retry": "relaxed"} if state == "RETRY_WAIT" else {}))

    def _rewrite(self, name: str, **fields: Any) -> "Story":
        self._rewritten.append((len(self.events), name, fields))
        return self

    def act(self, action: str, lane: int = 1) -> "Story":
        """An operator holds or releases a lane."""
        self._acts.append((len(self.events), lane, Act(action=action, token=self._tokens[lane])))
        return self

    def claim(self, name: str, **fields: Any) -> "Story":
        """It becomes an attempt, and the broker has it."""
        lane = self.commands[name]["lane_id"]
        self._attempts[name] += 1
        self._tokens[lane] += 1
        usual = {"lane_token": self._tokens[lane], "start_by": self.now + WINDOW}
        self.move(name, "DISPATCHING", "CLAIMED", **usual | fields)
        return self.move(name, "SENT", "CONFIRMED")

    def execute(self, name: str, **fields: Any) -> "Story":
        """Its device does it, says the journal."""
        command = self.commands.get(name, {"command_id": uuid_of(name), "device_sn": "SN1"})
        usual = {
            "journal": "j",
            "place": len(self.executions) + 1,
            "device": command["device_sn"],
            "at": self.now,
            "command_id": command["command_id"],
            "attempt": self._attempts[name] or 1,
        }
        self.executions.append(Execution(**usual | fields))
        return self

    def done(self, *names: str) -> "Story":
        """All of it, one after the other."""
        for name in names:
            self.claim(name).execute(name).move(name, "SUCCESS")
        return self

    def facts(self, *, until: int | None = None, at: datetime = MUCH_LATER) -> Facts:
        """The tables as they were after so many events; the journals as they are now."""
        events = tuple(self.events[:until])
        acts: dict[tuple[int, str], list[Act]] = defaultdict(list)
        for after, lane, act in self._acts:
            if after <= len(events):
                acts[1, _key(lane)].append(act)
        rows = {event.command_pk for event in events}
        commands = {
            fields["pk"]: self._row(name, fields, [event for event in events if event.command_pk == fields["pk"]])
            for name, fields in self.commands.items()
            if fields["pk"] in rows
        }
        names = sorted({execution.journal for execution in self.executions} | {"j"})
        return Facts(
            at=at if until is None else events[-1].at,
            commands=commands,
            events=events,
            lanes={lane: _lane(lane, list(commands.values()), events, acts) for lane in _lanes(commands)},
            acts=acts,
            journals=tuple(
                Journal(name=name, executions=tuple(one for one in self.executions if one.journal == name))
                for name in names
            ),
            device_sns=frozenset(command.device_sn or "" for command in commands.values()),
        )

    def _row(self, name: str, fields: dict[str, Any], events: list[Event]) -> Command:
        for after, whose, columns in self._rewritten:
            if whose == name and any(event.id == after for event in events):
                fields = fields | columns
        claims = [event for event in events if event.kind == "CLAIMED"]
        handed_over = [event.at for event in events if event.after == "AWAITING_ACK"]
        in_review = str(events[-1].after) == "MANUAL_REVIEW" and fields.get("review_policy") == "hold"
        fields = {"review_hold": in_review} | fields
        return Command(
            status=str(events[-1].after),
            attempt=len(claims),
            quiet_at=(claims[-1].start_by or T0) + CALL + GRACE if claims else None,
            ack_due_at=handed_over[-1] + ACK if handed_over else None,
            **fields,
        )


def _lanes(commands: dict[int, Command]) -> set[int]:
    return {command.lane_id for command in commands.values()}


def _key(lane: int) -> str:
    return f"device:{lane}"


def _lane(
    lane: int, commands: list[Command], events: tuple[Event, ...], acts: dict[tuple[int, str], list[Act]]
) -> Lane:
    mine = {command.pk: command for command in commands if command.lane_id == lane}
    depth = sum(command.status in WAITING for command in mine.values())
    holders = [
        command
        for command in mine.values()
        if holds_lane(Status(command.status), Gate(command.gate), RetryPlace(command.retry))
    ]
    done = acts.get((1, _key(lane)), [])
    in_flight = any(holder.status != "RETRY_WAIT" for holder in holders)
    return Lane(
        lane_id=lane,
        tenant_id=1,
        key=_key(lane),
        state="busy" if in_flight else "ready" if depth else "idle",
        depth=depth,
        holder_id=holders[0].pk if holders else None,
        token=max((event.lane_token or 0 for event in events if event.command_pk in mine), default=0),
        review_holds=sum(command.review_hold for command in mine.values()),
        operator_hold="shift" if done and done[-1].action == "lane.hold" else None,
    )


def findings(facts: Facts, **terms: timedelta) -> dict[str, list[Finding]]:
    """What is broken, by rule."""
    return {name: found for name, found in rules.check(facts, Terms(**terms)).items() if found}


def the_finding(facts: Facts, rule: str, **terms: timedelta) -> Finding:
    """The only finding, by the only rule that is broken."""
    found = findings(facts, **terms)
    assert set(found) == {rule}, found
    [finding] = found[rule]
    assert finding.evidence or rule == "lane_books"
    return finding
