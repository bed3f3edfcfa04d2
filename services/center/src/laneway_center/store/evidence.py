"""Applying evidence in batches: lock, judge, write back, free lanes. One transaction, no remote call."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import RowMapping
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from laneway_center.store.database import to_json, transact
from laneway_center.store.statements import SQL
from laneway_shared.lifecycle import (
    FINAL,
    TRANSITIONS,
    WAITING,
    Evidence,
    Gate,
    Policy,
    RetryPlace,
    Snapshot,
    Status,
    judge,
)


@dataclass(frozen=True, kw_only=True)
class Item:
    """One piece of evidence and whom it is about: a command id, or a device whose only command in flight is meant."""

    tenant_id: int
    evidence: Evidence
    command_id: str | None = None
    device_sn: str | None = None
    detail: dict[str, Any] = field(default_factory=dict)  # for the timeline


@dataclass(frozen=True, kw_only=True)
class Change:
    """A state change that was written."""

    command_id: str
    tenant_id: int
    attempt: int
    before: Status
    after: Status
    error_code: str | None
    accepted_at: datetime
    at: datetime


@dataclass(frozen=True, kw_only=True)
class Applied:
    """What a batch did. `orphans` are the places (in the batch) of evidence about no command known here."""

    changes: tuple[Change, ...]
    orphans: tuple[int, ...]
    lanes_ready: bool


@dataclass(frozen=True, kw_only=True)
class JudgeTerms:
    """How evidence is judged."""

    grace: timedelta
    policy: Policy
    chance: Callable[[], float] = field(default=lambda: random.uniform(-1, 1))  # noqa: S311 - jitter


class TransitionRefusedError(RuntimeError):
    """A judged change is not in TRANSITIONS, or its row changed under the lock: a bug, nothing was written."""


async def apply(engine: AsyncEngine, items: Sequence[Item], terms: JudgeTerms) -> Applied:
    """Apply evidence in the order given.

    Raises:
        DatabaseAwayError: PostgreSQL can't be reached; nothing was written.
        DBAPIError: the database refused a value; nothing was written.
    """

    async def work() -> Applied:
        async with engine.begin() as connection:
            return await _Batch(connection, items, terms).run()

    return await transact(work)


@dataclass
class _Command:
    """A locked command row and what becomes of it."""

    row: RowMapping
    before: Snapshot
    now_is: Snapshot
    seq: int
    touched: bool = False


class _Batch:
    def __init__(self, connection: AsyncConnection, items: Sequence[Item], terms: JudgeTerms) -> None:
        self.connection, self.items, self.terms = connection, items, terms
        self.lanes: dict[int, dict[str, Any]] = {}
        self.by_id: dict[int, _Command] = {}
        self.by_key: dict[tuple[int, str], _Command] = {}
        self.events: list[dict[str, Any]] = []
        self.changes: list[Change] = []
        self.now = datetime.min.replace(tzinfo=UTC)

    async def run(self) -> Applied:
        await self.lock()
        orphans = tuple(n for n, item in enumerate(self.items) if not self.judge(item))
        lanes_ready = self.settle_lanes()
        await self.write()
        return Applied(changes=tuple(self.changes), orphans=orphans, lanes_ready=lanes_ready)

    async def lock(self) -> None:
        keys = {(i.tenant_id, i.command_id, None if i.command_id else i.device_sn) for i in self.items}
        rows = to_json([{"tenant_id": t, "command_id": c, "device_sn": s} for t, c, s in keys])
        lanes = await self.connection.execute(SQL["lanes_of_evidence"], {"rows": rows})
        self.lanes = {lane["lane_id"]: dict(lane) for lane in lanes.mappings()}
        commands = await self.connection.execute(SQL["commands_of_evidence"], {"rows": rows, "lanes": list(self.lanes)})
        for row in commands.mappings():
            snapshot = _snapshot(row, self.terms.grace)
            command = _Command(row=row, before=snapshot, now_is=snapshot, seq=row["seq"])
            self.by_id[row["id"]] = self.by_key[row["tenant_id"], row["command_id"]] = command
            self.now = row["now"]

    def find(self, item: Item) -> _Command | None:
        if item.command_id is not None:
            return self.by_key.get((item.tenant_id, item.command_id))
        holders = [self.by_id.get(lane["holder_id"] or 0) for lane in self.lanes.values()]
        mine = [
            c
            for c in holders
            if c
            and c.row["tenant_id"] == item.tenant_id
            and c.row["device_sn"] == item.device_sn
            and c.now_is.status not in FINAL | WAITING
        ]
        return mine[0] if len(mine) == 1 else None

    def judge(self, item: Item) -> bool:
        command = self.find(item)
        if command is None:
            return False
        old = command.now_is
        verdict = judge(old, item.evidence, now=self.now, policy=self.terms.policy, chance=self.terms.chance())
        new = verdict.snapshot
        if new.status is not old.status and new.status not in TRANSITIONS.get(old.status, ()):
            raise TransitionRefusedError(f"{old.status} -> {new.status} by {item.evidence.kind}")
        attempt = old.attempt if item.evidence.attempt is None else item.evidence.attempt
        detail = {key: value for key, value in item.detail.items() if value is not None}
        self.events.append(
            {
                "n": len(self.events),
                "command_pk": command.row["id"],
                "at": self.now,
                "from_status": old.status,
                "to_status": new.status,
                "attempt": attempt,
                "kind": item.evidence.kind,
                "note": verdict.note,
                "detail": detail or None,
            }
        )
        if new is not old:
            command.touched = True
            command.now_is = new
            self.move(command, old, new)
        return True

    def move(self, command: _Command, old: Snapshot, new: Snapshot) -> None:
        """Keep the lane's books."""
        lane = self.lanes[command.row["lane_id"]]
        lane["depth"] += int(new.waits) - int(old.waits)
        if new.status is Status.MANUAL_REVIEW and lane["review_policy"] == "hold":
            lane["review_holds"] += 1
        if old.status is Status.MANUAL_REVIEW and lane["review_policy"] == "hold":
            lane["review_holds"] = max(lane["review_holds"] - 1, 0)
        mine = lane["holder_id"] == command.row["id"]
        if new.status is Status.RETRY_WAIT and new.retry is RetryPlace.RELAXED and old.status is not new.status:
            lane["next_seq"] += 1  # to the tail
            command.seq = lane["next_seq"]
        if mine and not new.holds_lane:
            lane.update(holder_id=None, state="ready", ready_at=self.now, changed=True)
        elif mine and new.status is Status.RETRY_WAIT:
            lane.update(state="ready", ready_at=new.next_visible_at)
        lane["changed"] = True
        if new.status is not old.status:
            self.changes.append(
                Change(
                    command_id=command.row["command_id"],
                    tenant_id=command.row["tenant_id"],
                    attempt=new.attempt,
                    before=old.status,
                    after=new.status,
                    error_code=new.error_code,
                    accepted_at=command.row["create_time"],
                    at=self.now,
                )
            )

    def settle_lanes(self) -> bool:
        ready = False
        for lane in self.lanes.values():
            if not lane.get("changed"):
                continue
            if lane["holder_id"] is None and lane["state"] != "busy":
                lane["state"] = "ready" if lane["depth"] > 0 else "idle"
            ready = ready or (lane["state"] == "ready" and lane["ready_at"] <= self.now)
        return ready

    async def write(self) -> None:
        touched = [command for command in self.by_id.values() if command.touched]
        if touched:
            rows = [_judged_row(command, self.now) for command in touched]
            result = await self.connection.execute(SQL["write_judged"], {"rows": to_json(rows)})
            if result.rowcount != len(rows):
                raise TransitionRefusedError(f"{len(rows) - result.rowcount} of {len(rows)} rows slipped their lock")
        lanes = [lane for lane in self.lanes.values() if lane.get("changed")]
        if lanes:
            await self.connection.execute(SQL["write_lanes"], {"rows": to_json(lanes)})
        if self.events:
            await self.connection.execute(SQL["write_events"], {"rows": to_json(self.events)})


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


def _judged_row(command: _Command, now: datetime) -> dict[str, Any]:
    new, old = command.now_is, command.before
    return {
        "id": command.row["id"],
        "status": new.status,
        "allowed": [old.status],  # read under the lock; TRANSITIONS was asked in judge
        "attempt": old.attempt,
        "attempts_spent": new.attempts_spent,
        "started": new.started,
        "unknown": new.unknown,
        "letter": new.letter,
        "called": new.called,
        "may_have_run": new.may_have_run,
        "absent": new.absent,
        "ack_due_at": new.ack_due_at,
        "due_at": None if new.status in FINAL else new.due_at,
        "next_visible_at": new.next_visible_at,
        "response_value": new.response_value,
        "error_code": new.error_code,
        "error_message": new.error_message,
        "seq": command.seq,
        "final": new.status in FINAL,
        "at": now,
    }
