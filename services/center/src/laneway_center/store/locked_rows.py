"""Command rows under their locks: read, changed through one gate, written back with their lanes and timelines."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import RowMapping
from sqlalchemy.ext.asyncio import AsyncConnection

from laneway_center.store.database import to_json
from laneway_center.store.statements import SQL
from laneway_shared.judgement import Snapshot
from laneway_shared.lifecycle import (
    FINAL,
    LETTER_DELIVERY_LIMIT,
    LETTER_REJECTED,
    TRANSITIONS,
    Gate,
    RetryPlace,
    Status,
    is_dead_end,
)


@dataclass(frozen=True, kw_only=True)
class Subject:
    """Whom something is about: a command, or the one a device has been given (devices name no tenant)."""

    tenant_id: int | None = None
    command_id: str | None = None
    device_sn: str | None = None
    said_at: datetime | None = None  # when the device said it, by the listener's clock


@dataclass(frozen=True, kw_only=True)
class Change:
    """A state change that was written."""

    command_id: str
    tenant_id: int
    attempt: int
    before: Status
    after: Status
    error_code: str | None
    lane_key: str
    intent_key: str | None
    accepted_at: datetime
    at: datetime
    driver: str
    freed_after: timedelta | None  # since the claim, where it gave its lane back

    @property
    def left_the_road(self) -> bool:
        """Whether its driver service has room for another one now."""
        on_the_way = (Status.DISPATCHING, Status.SENT)
        return self.before in on_the_way and self.after not in on_the_way


class TransitionRefusedError(RuntimeError):
    """A change is not in the table of transitions, or its row changed under the lock: a bug, nothing was written."""


@dataclass
class LockedCommand:
    """A locked command row and what becomes of it."""

    row: RowMapping
    before: Snapshot
    now_is: Snapshot
    seq: int
    review_hold: bool  # its review holds the lane
    touched: bool = False


class LockedRows:
    """All rows one transaction works on. Lanes are locked in lane_id order, then commands in id order."""

    def __init__(self, connection: AsyncConnection, grace: timedelta) -> None:
        self._connection, self.grace = connection, grace
        self._lanes: dict[int, dict[str, Any]] = {}
        self._changed_lanes: set[int] = set()
        self._by_id: dict[int, LockedCommand] = {}
        self._by_key: dict[str, list[LockedCommand]] = {}
        self._events: list[dict[str, Any]] = []
        self.changes: list[Change] = []
        self.now = datetime.min.replace(tzinfo=UTC)  # the database's clock, once something is locked

    async def lock(self, subjects: Sequence[Subject]) -> None:
        """Lock the lanes and commands these are about. In statements of their own: each sees what the wait let by."""
        named = {(s.tenant_id, s.command_id) for s in subjects if s.command_id is not None}
        unnamed = {(s.tenant_id, s.device_sn) for s in subjects if s.command_id is None}
        devices: list[int] = []  # their lanes
        if unnamed:
            rows = to_json([{"tenant_id": tenant, "device_sn": sn} for tenant, sn in unnamed])
            devices += (await self._connection.execute(SQL["lanes_of_devices"], {"rows": rows})).scalars()
        rows = to_json([{"tenant_id": tenant, "command_id": command} for tenant, command in named])
        locked = await self._connection.execute(SQL["lock_subjects"], {"rows": rows, "lanes": devices})
        self._lanes = {lane["lane_id"]: dict(lane) for lane in locked.mappings()}
        command_ids = {lane["holder_id"] for lane in self._lanes.values() if lane["holder_id"] is not None}
        command_ids.update(*(lane.pop("commands") or () for lane in self._lanes.values()))
        commands = await self._connection.execute(SQL["commands_of_evidence"], {"commands": sorted(command_ids)})
        for row in commands.mappings():
            self._add(row)

    def _add(self, row: RowMapping) -> None:
        snapshot = _snapshot(row, self.grace)
        command = LockedCommand(
            row=row, before=snapshot, now_is=snapshot, seq=row["seq"], review_hold=row["review_hold"]
        )
        self._by_id[row["id"]] = command
        self._by_key.setdefault(str(row["command_id"]), []).append(command)
        self.now = row["now"]

    @property
    def ids(self) -> list[int]:
        """Row ids of the locked commands."""
        return list(self._by_id)

    def find(self, subject: Subject) -> LockedCommand | None:
        """The locked command somebody means; None: unknown, ambiguous, or another device's."""
        if subject.command_id is not None:
            found = [c for c in self._by_key.get(subject.command_id, ()) if _fits(c, subject)]
        else:
            holders = [self._by_id.get(lane["holder_id"] or 0) for lane in self._lanes.values()]
            found = [c for c in holders if c is not None and _fits(c, subject) and _awaits(c, subject)]
        return found[0] if len(found) == 1 else None

    def record(
        self,
        command: LockedCommand,
        new: Snapshot,
        *,
        kind: str,
        note: str,
        attempt: int,
        detail: Mapping[str, Any],
        table: Mapping[Status, frozenset[Status]] = TRANSITIONS,
    ) -> None:
        """The one gate: a line in the timeline, and the change if there is one.

        Raises:
            TransitionRefusedError: `table` doesn't allow it.
        """
        old = command.now_is
        if new.status is not old.status and new.status not in table.get(old.status, ()):
            raise TransitionRefusedError(f"{old.status} -> {new.status} by {kind}")
        self._events.append(
            {
                "n": len(self._events),
                "command_pk": command.row["id"],
                "at": self.now,
                "from_status": old.status,
                "to_status": new.status,
                "attempt": attempt,
                "kind": kind,
                "note": note,
                "detail": {key: value for key, value in detail.items() if value is not None} or None,
            }
        )
        if new is not old:
            command.touched = True
            command.now_is = new
            self._keep_books(command, old, new)

    def lane_key(self, command: LockedCommand) -> str:
        """The lane of a locked command."""
        return str(self._lanes[command.row["lane_id"]]["lane_key"])

    def to_the_tail(self, command: LockedCommand) -> None:
        """Give it the next place of its lane."""
        lane = self._lanes[command.row["lane_id"]]
        lane["next_seq"] += 1
        command.seq = lane["next_seq"]

    def lift_review_hold(self, command: LockedCommand) -> None:
        """Its review closes the lane no longer."""
        command.review_hold, command.touched = False, True
        self._lanes[command.row["lane_id"]]["review_holds"] -= 1
        self._changed_lanes.add(command.row["lane_id"])

    async def put_last(self, command: LockedCommand, priority: int) -> None:
        """Behind all others of its lane, whatever its priority was; after `write`."""
        given = {"id": command.row["id"], "priority": max(priority, command.row["priority"])}
        await self._connection.execute(SQL["move_to_tail"], given)

    def _keep_books(self, command: LockedCommand, old: Snapshot, new: Snapshot) -> None:
        lane = self._lanes[command.row["lane_id"]]
        self._changed_lanes.add(command.row["lane_id"])
        lane["depth"] += int(new.waits) - int(old.waits)
        if new.waits and not old.waits:
            lane["last_priority"] = max(lane["last_priority"], command.row["priority"])
        if new.status is Status.MANUAL_REVIEW is not old.status and command.row["review_policy"] == "hold":
            command.review_hold = True
            lane["review_holds"] += 1
        elif command.review_hold and new.status is not Status.MANUAL_REVIEW:
            command.review_hold = False
            lane["review_holds"] -= 1
        if new.status is Status.RETRY_WAIT is not old.status and new.retry is RetryPlace.RELAXED:
            self.to_the_tail(command)
        freed_after = None
        if lane["holder_id"] == command.row["id"]:
            if not new.holds_lane:
                claimed_at = command.row["claimed_at"]
                freed_after = None if claimed_at is None else self.now - claimed_at
                lane.update(holder_id=None, state="ready", ready_at=self.now)
            elif new.status is Status.RETRY_WAIT:
                lane.update(state="ready", ready_at=new.next_visible_at)
        if new.status is Status.PENDING is not old.status and lane["holder_id"] is None:
            lane["ready_at"] = min(lane["ready_at"], self.now)
        if new.status is not old.status:
            self.changes.append(
                Change(
                    command_id=command.row["command_id"],
                    tenant_id=command.row["tenant_id"],
                    attempt=new.attempt,
                    before=old.status,
                    after=new.status,
                    error_code=new.error_code,
                    lane_key=lane["lane_key"],
                    intent_key=command.row["intent_key"],
                    accepted_at=command.row["create_time"],
                    at=self.now,
                    driver=command.row["driver"],
                    freed_after=freed_after,
                )
            )

    async def write(self) -> frozenset[str] | None:
        """Write everything back; returns the driver services at which a lane can send now.

        None: wherever one waits, it can: a driver service has room again.

        Raises:
            TransitionRefusedError: a row changed under its lock.
        """
        touched = [command for command in self._by_id.values() if command.touched]
        lanes = [self._lanes[lane_id] for lane_id in sorted(self._changed_lanes)]
        ready: set[str] = set()
        for lane in lanes:
            if lane["holder_id"] is None and lane["state"] != "busy":
                if lane["state"] == "idle" and lane["depth"] > 0:
                    lane["ready_at"] = self.now
                lane["state"] = "ready" if lane["depth"] > 0 else "idle"
            if lane["state"] == "ready" and lane["ready_at"] <= self.now:
                ready.add(lane["driver"])
        if touched or lanes or self._events:
            await self._write_back([_written(command, self.now) for command in touched], lanes)
        ends = [_dead_end(command) for command in touched if _reached_dead_end(command)]
        if ends:
            rows = [{"n": n, "at": self.now} | end for n, end in enumerate(ends)]
            await self._connection.execute(SQL["write_dead_ends"], {"rows": to_json(rows)})
        roomier = {change.driver for change in self.changes if change.left_the_road}
        return frozenset(ready) if roomier <= ready else None

    async def _write_back(self, commands: list[dict[str, Any]], lanes: list[dict[str, Any]]) -> None:
        given = {"commands": to_json(commands), "lanes": to_json(lanes), "events": to_json(self._events)}
        written = (await self._connection.execute(SQL["write_back"], given)).scalar_one()
        if written != len(commands):
            raise TransitionRefusedError(f"{len(commands) - written} of {len(commands)} rows slipped their lock")


def _reached_dead_end(command: LockedCommand) -> bool:
    new = command.now_is
    return new.status is not command.before.status and is_dead_end(new.status, unsafe=new.unsafe)


def _dead_end(command: LockedCommand) -> dict[str, Any]:
    new = command.now_is
    reason = {Status.EXPIRED: "expired", Status.TIMEOUT: "timeout"}.get(new.status, "attempts")
    if new.status is Status.DEAD and new.letter in (LETTER_REJECTED, LETTER_DELIVERY_LIMIT):
        reason = new.letter
    return {"command_pk": command.row["id"], "reason": reason}


def _fits(command: LockedCommand, subject: Subject) -> bool:
    """Tenant and device, where they are named, are those of the command."""
    row = command.row
    return (subject.tenant_id in (None, row["tenant_id"])) and (subject.device_sn in (None, row["device_sn"]))


def _awaits(command: LockedCommand, subject: Subject) -> bool:
    """An answer that names no command belongs to the one handed over before it was said; never to an unsafe one."""
    if command.now_is.status is not Status.AWAITING_ACK or command.now_is.unsafe:
        return False
    claimed_at = command.row["claimed_at"]
    return subject.said_at is None or claimed_at is None or subject.said_at >= claimed_at


def _snapshot(row: RowMapping, grace: timedelta) -> Snapshot:
    return Snapshot(
        status=Status(row["status"]),
        attempt=row["attempt"],
        attempts_spent=row["attempts_spent"],
        max_attempts=row["max_attempts"],
        unsafe=row["retry_safety"] == "unsafe",
        gate=Gate(row["gate"]),
        retry=RetryPlace(row["retry"]),
        ack_expected=row["ack_expected"],
        ack_timeout=None if row["ack_timeout_ms"] is None else timedelta(milliseconds=row["ack_timeout_ms"]),
        expire_at=row["expire_at"],
        start_by=row["start_by"],
        quiet_at=row["quiet_at"],
        grace=grace,
        started=row["started"],
        unknown=row["unknown"],
        letter=row["letter"],
        called=row["called"],
        may_have_run=row["may_have_run"],
        absent=row["absent"],
        ack_due_at=row["ack_due_at"],
        due_at=row["due_at"],
        next_visible_at=row["next_visible_at"],
        response_value=row["response_value"],
        error_code=row["error_code"],
        error_message=row["error_message"],
    )


def _written(command: LockedCommand, now: datetime) -> dict[str, Any]:
    new, old = command.now_is, command.before
    return {
        "id": command.row["id"],
        "status": new.status,
        "allowed": [old.status],  # read under the lock; the table of transitions was asked in record
        "attempt": old.attempt,
        "attempts_spent": new.attempts_spent,
        "started": new.started,
        "unknown": new.unknown,
        "letter": new.letter,
        "called": new.called,
        "may_have_run": new.may_have_run,
        "absent": new.absent,
        "ack_due_at": new.ack_due_at,
        "due_at": new.due_at,
        "next_visible_at": new.next_visible_at,
        "response_value": new.response_value,
        "error_code": new.error_code,
        "error_message": new.error_message,
        "seq": command.seq,
        "expire_at": new.expire_at,
        "review_hold": command.review_hold,
        "final": new.status in FINAL,
        "at": now,
    }
