"""Which commands may enter their lanes, and which ones leave for them. Decided under the lanes' locks."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from http import HTTPStatus

from sqlalchemy import RowMapping
from sqlalchemy.ext.asyncio import AsyncConnection

from laneway_center.store.database import RowsMovedError, to_json
from laneway_center.store.enqueue import Key, NewCommand, enqueue
from laneway_center.store.locked_rows import Change, LockedRows, Subject
from laneway_center.store.statements import SQL
from laneway_center.store.withdrawals import DROPPED, REPLACED, REVOKED, Withdrawal, withdraw
from laneway_shared.lifecycle import WAITING, RetryPlace, Status
from laneway_shared.problems import ProblemError

RETRY_AFTER_S = 1
MOST_WAVES = 50  # parts of one transaction; each takes some ten milliseconds, with the lanes locked

Intent = tuple[int, int, str]
"""Lane, device and intent key."""


@dataclass
class Admitted:
    """What became of commands at the door of their lanes."""

    lane_ids: dict[tuple[int, str], int] = field(default_factory=dict)
    entering: list[NewCommand] = field(default_factory=list)
    refused: dict[Key, ProblemError] = field(default_factory=dict)
    live: dict[Key, Key] = field(default_factory=dict)  # a duplicate, and the live command it duplicates
    later: list[NewCommand] = field(default_factory=list)  # may find room when those before them are stored
    withdrawn: tuple[Change, ...] = ()


@dataclass
class Entered:
    """What became of commands that passed all other checks."""

    inserted: dict[Key, RowMapping] = field(default_factory=dict)
    refused: dict[Key, ProblemError] = field(default_factory=dict)
    live: dict[Key, Key] = field(default_factory=dict)
    withdrawn: list[Change] = field(default_factory=list)


async def enter(connection: AsyncConnection, commands: Sequence[NewCommand], grace: timedelta) -> Entered:
    """Lock the lanes, decide, withdraw, insert.

    Raises:
        RowsMovedError: the transaction must be rolled back and done again.
        TransitionRefusedError: a bug; the transaction must not be committed.
    """
    entered = Entered()
    if not commands:
        return entered
    lanes = Lanes(connection)
    await lanes.lock(commands)
    rest = list(commands)
    for _ in range(MOST_WAVES):
        if not rest:
            break
        wave, rest = next_wave(lanes, rest)
        admitted = await admit(lanes, wave, grace)
        rest = admitted.later + rest
        inserted = await enqueue(connection, admitted.entering, admitted.lane_ids)
        if admitted.withdrawn and len(inserted) < len(admitted.entering):
            raise RowsMovedError  # the others were withdrawn for a command that somebody else has stored meanwhile
        entered.inserted |= inserted
        entered.refused |= admitted.refused
        entered.live |= admitted.live
        entered.withdrawn += admitted.withdrawn
    entered.refused |= {command.key: lane_busy(command) for command in rest}
    return entered


class Lanes:
    """The locked lanes of one transaction, with their depths as they are now."""

    def __init__(self, connection: AsyncConnection) -> None:
        self.connection = connection
        self._lanes: dict[tuple[int, str], RowMapping] = {}
        self.depth: Counter[int] = Counter()

    async def lock(self, commands: Sequence[NewCommand]) -> None:
        """Lock the lanes of these commands, in lane_id order; lanes nobody has used yet are made first."""
        drivers = {(c.tenant_id, c.lane_key): c.driver for c in commands}
        fresh = {(c.tenant_id, c.lane_key) for c in commands if c.lane_id is None}
        if fresh:
            made = [{"tenant_id": t, "lane_key": key, "driver": drivers[t, key]} for t, key in sorted(fresh)]
            await self.connection.execute(SQL["create_lanes"], {"rows": to_json(made)})
        lanes = {c.lane_id for c in commands if c.lane_id is not None}
        if fresh:
            named = [{"tenant_id": tenant, "lane_key": key} for tenant, key in fresh]
            lanes.update((await self.connection.execute(SQL["lanes_by_key"], {"rows": to_json(named)})).scalars())
        locked = await self.connection.execute(SQL["lock_lanes"], {"lanes": sorted(lanes)})
        for row in locked.mappings():
            self._lanes[row["tenant_id"], row["lane_key"]] = row
            self.depth[row["lane_id"]] = row["depth"]
        for command in commands:
            if command.placement not in (None, self._lanes[command.tenant_id, command.lane_key]["placement"]):
                raise RowsMovedError  # a device has left the lane since it was read: it may be this one

    def id_of(self, command: NewCommand) -> int:
        """The row id of a command's lane."""
        lane_id: int = self._lanes[command.tenant_id, command.lane_key]["lane_id"]
        return lane_id


def next_wave(lanes: Lanes, commands: list[NewCommand]) -> tuple[list[NewCommand], list[NewCommand]]:
    """The first commands, as many as can't be in each other's way, and the others.

    So no intent stands twice in a wave, no wave fills a lane beyond its bound by itself, and where a full lane gives
    up old commands no wave holds one that may replace others beside one that needs their room.
    """
    intents: set[Intent] = set()
    count: Counter[int] = Counter()
    with_intent: Counter[int] = Counter()
    for at, command in enumerate(commands):
        lane_id = lanes.id_of(command)
        intent = _intent(lane_id, command)
        in_the_way = intent is not None and intent in intents
        if command.on_full == "drop_oldest" and count[lane_id]:
            full = lanes.depth[lane_id] + count[lane_id] >= command.depth_limit
            mixed = intent is not None or with_intent[lane_id] > 0
            in_the_way = in_the_way or count[lane_id] >= command.depth_limit or (full and mixed)
        if in_the_way:
            return commands[:at], commands[at:]
        count[lane_id] += 1
        if intent is not None:
            intents.add(intent)
            with_intent[lane_id] += 1
    return commands, []


async def admit(lanes: Lanes, wave: Sequence[NewCommand], grace: timedelta) -> Admitted:
    """Decide about one part of the commands, and withdraw those that leave for them.

    Raises:
        TransitionRefusedError: a bug; the transaction must not be committed.
    """
    door = _Door(lanes, await _live_intents(lanes, wave))
    for command in wave:
        door.decide(command)
    await door.make_room()
    admitted = door.admitted
    if door.leaving:
        rows = LockedRows(lanes.connection, grace)
        await rows.lock([Subject(tenant_id=tenant, command_id=one) for tenant, one in door.leaving])
        for (tenant, one), (withdrawal, newer) in door.leaving.items():
            old = rows.find(Subject(tenant_id=tenant, command_id=one))
            if old is not None:
                withdraw(rows, old, withdrawal, {"newer": newer.command_id})
        await rows.write()
        admitted.withdrawn = tuple(rows.changes)
    admitted.lane_ids = {(c.tenant_id, c.lane_key): lanes.id_of(c) for c in admitted.entering}
    return admitted


async def _live_intents(lanes: Lanes, wave: Sequence[NewCommand]) -> dict[Intent, list[RowMapping]]:
    intents = [_intent(lanes.id_of(command), command) for command in wave]
    keys = [{"lane_id": i[0], "device_id": i[1], "intent_key": i[2]} for i in intents if i is not None]
    live: dict[Intent, list[RowMapping]] = defaultdict(list)
    if keys:
        found = await lanes.connection.execute(SQL["live_intents"], {"rows": to_json(keys)})
        for row in found.mappings():
            live[row["lane_id"], row["device_id"], row["intent_key"]].append(row)
    return live


def _intent(lane_id: int, command: NewCommand) -> Intent | None:
    return None if command.intent_key is None else (lane_id, command.device_id, command.intent_key)


class _Door:
    def __init__(self, lanes: Lanes, live: dict[Intent, list[RowMapping]]) -> None:
        self._lanes, self._live = lanes, live
        self._full: dict[int, list[NewCommand]] = defaultdict(list)  # who enters a full lane that gives up old ones
        self.leaving: dict[Key, tuple[Withdrawal, NewCommand]] = {}
        self.admitted = Admitted()

    def decide(self, command: NewCommand) -> None:
        """Whether it enters, and who leaves for it by its intent."""
        key = command.key
        lane_id = self._lanes.id_of(command)
        intent = _intent(lane_id, command)
        live = [] if intent is None else self._live[intent]
        if command.merge == "reject_duplicate" and live and live[-1]["purpose"] == command.purpose:
            self.admitted.live[key] = (live[-1]["tenant_id"], live[-1]["command_id"])
            return
        leaving = {(row["tenant_id"], row["command_id"]): why for row in live if (why := _superseded(row, command))}
        depth = self._lanes.depth[lane_id] - len(leaving) + 1
        if depth > command.depth_limit:
            if command.on_full != "drop_oldest":
                self.admitted.refused[key] = lane_full(command)
                return
            self._full[lane_id].append(command)
        self._lanes.depth[lane_id] = depth
        self.leaving |= {row: (why, command) for row, why in leaving.items()}
        self.admitted.entering.append(command)

    async def make_room(self) -> None:
        """Give up the oldest safe commands of full lanes; who finds no room all the same is refused.

        Unless some before it in this wave may be given up for it: they have to be stored first.
        """
        if not self._full:
            return
        wanted = [{"lane_id": lane_id, "most": len(entering)} for lane_id, entering in self._full.items()]
        found = await self._lanes.connection.execute(
            SQL["oldest_safe"], {"rows": to_json(wanted), "but": [command for _, command in self.leaving]}
        )
        oldest: dict[int, list[Key]] = defaultdict(list)
        for row in found:
            oldest[row.lane_id].append((row.tenant_id, row.command_id))
        for lane_id, entering in self._full.items():
            given_up = oldest[lane_id]
            for command, old in zip(entering, given_up, strict=False):
                self.leaving[old] = (DROPPED, command)
            self._lanes.depth[lane_id] -= min(len(given_up), len(entering))
            if len(entering) > len(given_up):
                self._no_room(lane_id, entering[len(given_up)])

    def _no_room(self, lane_id: int, first: NewCommand) -> None:
        """For this one and those behind it in its lane: their order stays."""
        inside = [command for command in self.admitted.entering if self._lanes.id_of(command) == lane_id]
        at = inside.index(first)
        for command in inside[at:]:
            self._take_back(command, lane_id)
            if at > 0:
                self.admitted.later.append(command)
            else:
                self.admitted.refused[command.key] = lane_full(command)

    def _take_back(self, command: NewCommand, lane_id: int) -> None:
        self.admitted.entering.remove(command)
        stays = [row for row, (_, newer) in self.leaving.items() if newer is command]
        for row in stays:
            del self.leaving[row]
        self._lanes.depth[lane_id] += len(stays) - 1


def _superseded(row: RowMapping, newer: NewCommand) -> Withdrawal | None:
    """Why an open command of the same intent leaves for a newer one, if it does."""
    if row["status"] not in WAITING:
        return None
    if newer.purpose == "revoke" and row["purpose"] != "revoke":
        return REVOKED
    overtaken = row["status"] == Status.RETRY_WAIT and row["retry"] == RetryPlace.RELAXED
    return REPLACED if newer.merge == "latest" or overtaken else None


def lane_busy(command: NewCommand) -> ProblemError:
    """Too many commands of one request replace each other."""
    return ProblemError(
        HTTPStatus.TOO_MANY_REQUESTS,
        "LANE_BUSY",
        f"too many commands of one request replace each other in lane {command.lane_key}; send the rest in another one",
        headers={"Retry-After": str(RETRY_AFTER_S)},
    )


def lane_full(command: NewCommand) -> ProblemError:
    """The lane has as many waiting commands as it may have."""
    return ProblemError(
        HTTPStatus.TOO_MANY_REQUESTS,
        "LANE_FULL",
        f"lane {command.lane_key} has {command.depth_limit} commands waiting, which is its bound; try again later",
        headers={"Retry-After": str(RETRY_AFTER_S)},
    )
