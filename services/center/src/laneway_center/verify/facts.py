"""What the checker judges: commands, timelines and lanes of one moment, and what the devices did."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property

CLAIMED, STORED, RESOLVED, SKIPPED = "CLAIMED", "STORED", "RESOLVED", "SKIPPED"
HOLD = "lane.hold"
SENT_AGAIN = frozenset({"REPLAYED", "REQUEUED"})
"""Kinds of events by which an operator sends a command again."""
BY_OPERATOR = SENT_AGAIN | {RESOLVED}
HANDED_OVER = frozenset({"TRANSMITTED", "ACCEPTED"})
"""Kinds of evidence by which a lane may go on before the device has done anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A row of point_command. States are plain text: what is checked may be wrong."""

    pk: int
    command_id: str
    tenant_id: int
    lane_id: int
    driver: str
    device_sn: str | None  # None: the device is no longer registered
    status: str
    gate: str
    retry: str
    unsafe: bool
    ack_expected: bool
    attempt: int
    call_timeout: timedelta
    expire_at: datetime
    quiet_at: datetime | None
    ack_due_at: datetime | None
    review_hold: bool = False  # its review closes the lane
    review_policy: str = "release"
    device_id: int = 0
    priority: int = 1
    intent_key: str | None = None
    purpose: str | None = None  # grant, revoke
    error_code: str | None = None

    @property
    def frees_lane_unanswered(self) -> bool:
        """Whether the lane goes on when the command is handed over, before the device has done it."""
        return self.gate == "transport" or not self.ack_expected


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A line of a command's timeline."""

    id: int
    command_pk: int
    at: datetime
    before: str | None
    after: str | None
    attempt: int
    kind: str
    lane_token: int | None = None  # of a claim
    start_by: datetime | None = None  # of a claim
    newer: str | None = None  # of SUPERSEDED: the id of the command it was given up for
    merge: str | None = None  # of STORED: what its caller wanted done with others of its intent

    @property
    def moves(self) -> bool:
        """Whether the state changed, rather than evidence being noted."""
        return self.after is not None and self.after != self.before


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """A row of lane."""

    lane_id: int
    tenant_id: int
    key: str
    state: str
    depth: int
    holder_id: int | None
    token: int
    review_holds: int
    operator_hold: str | None = None  # who holds it


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """A hold or release of a lane by an operator."""

    action: str
    token: int | None  # the lane's newest then; None: it wasn't written down


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """A device did something, says a journal."""

    journal: str
    place: int  # in its journal: what comes later has a higher one
    device: str  # serial number
    at: datetime  # by the clock of whoever wrote the journal
    command_id: str | None  # None: by hand, or with an id that is no UUID
    attempt: int | None


@dataclass(frozen=True, kw_only=True)
class Journal:
    """The executions one source knows of, in the order in which they happened."""

    name: str
    executions: tuple[Execution, ...]
    begins_at: datetime | None = None  # what was before has been cut or cleared; None: nothing was


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Everything at one moment of the database; the journals are read after it and may know more."""

    at: datetime  # the database's clock when the snapshot was taken
    since: datetime | None = None  # what ended before may have been dropped; None: nothing has
    commands: dict[int, Command]  # by row id
    events: tuple[Event, ...]  # by event id
    lanes: dict[int, Lane]
    journals: tuple[Journal, ...] = ()
    acts: Mapping[tuple[int, str], Sequence[Act]] = field(default_factory=dict)  # by tenant and lane key, oldest first
    device_sns: frozenset[str] = frozenset()  # devices that belong to the tenants looked at, and to nobody else

    @cached_property
    def timelines(self) -> dict[int, list[Event]]:
        """Events by command row id."""
        timelines: dict[int, list[Event]] = {pk: [] for pk in self.commands}
        for event in self.events:
            timelines[event.command_pk].append(event)
        return timelines

    @cached_property
    def claims(self) -> dict[tuple[int, int], Event]:
        """The first claim of each attempt, by command row id and attempt."""
        claims: dict[tuple[int, int], Event] = {}
        for event in self.events:
            if event.kind == CLAIMED:
                claims.setdefault((event.command_pk, event.attempt), event)
        return claims

    @cached_property
    def executions(self) -> dict[int, list[Execution]]:
        """Executions by command row id, in journal order."""
        return self._sorted_executions[0]

    @cached_property
    def strangers(self) -> list[Execution]:
        """Executions of commands that the snapshot doesn't hold."""
        return self._sorted_executions[1]

    @cached_property
    def _sorted_executions(self) -> tuple[dict[int, list[Execution]], list[Execution]]:
        known: dict[int, list[Execution]] = {}
        strangers: list[Execution] = []
        by_id: dict[str, list[Command]] = defaultdict(list)  # tenants may use the same id
        for command in self.commands.values():
            by_id[command.command_id].append(command)
        for journal in self.journals:
            for execution in journal.executions:
                if execution.command_id is None:
                    continue
                candidates = by_id.get(execution.command_id)
                if candidates is None:
                    strangers.append(execution)
                    continue
                at_device = (command for command in candidates if command.device_sn == execution.device)
                known.setdefault(next(at_device, candidates[0]).pk, []).append(execution)
        return known, strangers
