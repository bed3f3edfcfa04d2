"""Storing accepted commands, and what a submit is checked against."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import RowMapping
from sqlalchemy.ext.asyncio import AsyncConnection

from laneway_center.store.database import to_json
from laneway_center.store.statements import SQL

Key = tuple[int, str]
"""Tenant and command id."""


@dataclass(frozen=True, kw_only=True)
class NewCommand:
    """A command that passed all checks, as it goes into the tables."""

    command_id: str
    tenant_id: int
    type: str
    device_id: int
    point_id: int
    lane_key: str
    lane_id: int | None  # None: nobody has used the lane yet
    placement: int | None  # of the lane, when it was read in which lane the device is
    driver: str
    priority: int
    request_value: str | None
    source: str
    source_user_id: int | None
    intent_key: str | None
    purpose: str | None
    body_hash: str  # hex
    retry_safety: str
    gate: str
    retry: str
    review_policy: str
    ack_expected: bool
    ack_timeout_ms: int | None  # None: the device family's own, or the default
    call_timeout_ms: int
    max_attempts: int
    occurred_at: datetime
    expire_at: datetime
    merge: str | None  # latest, reject_duplicate
    depth_limit: int  # of the lane
    on_full: str  # reject, drop_oldest
    waiting_limit: int  # of the driver service

    @property
    def key(self) -> Key:
        """Who it is."""
        return self.tenant_id, self.command_id


async def known_bodies(connection: AsyncConnection, keys: Sequence[Key]) -> dict[Key, str]:
    """The body hashes (hex) of those of these commands that exist."""
    if not keys:
        return {}
    rows = [{"tenant_id": tenant, "command_id": command} for tenant, command in keys]
    found = await connection.execute(SQL["known_commands"], {"rows": to_json(rows)})
    return {(row.tenant_id, row.command_id): row.body_hash.hex() for row in found}


@dataclass(frozen=True)
class Asked:
    """What a submit asks for, as far as the tables know of it."""

    tenant_id: int
    command_id: str | None  # None: such an id has never been used before
    device_id: int
    point_id: int


async def scopes(connection: AsyncConnection, asked: Sequence[Asked]) -> list[RowMapping]:
    """What the registry says about each, in order, the command's body if it is known, and the database's clock."""
    rows = [{"n": n} | vars(each) for n, each in enumerate(asked)]
    found = await connection.execute(SQL["intake_scope"], {"rows": to_json(rows)})
    return list(found.mappings())


async def enqueue(
    connection: AsyncConnection, commands: Sequence[NewCommand], lane_ids: Mapping[tuple[int, str], int]
) -> dict[Key, RowMapping]:
    """Insert the commands into their locked lanes; returns those really inserted (the others existed by now)."""
    if not commands:
        return {}
    rows: list[dict[str, Any]] = [
        vars(command) | {"n": n, "lane_id": lane_ids[command.tenant_id, command.lane_key]}
        for n, command in enumerate(commands)
    ]
    result = await connection.execute(SQL["enqueue"], {"rows": to_json(rows)})
    inserted = {(row["tenant_id"], str(row["command_id"])): row for row in result.mappings()}
    missing = Counter(
        lane_ids[command.tenant_id, command.lane_key]
        for command in commands
        if (command.tenant_id, command.command_id) not in inserted
    )
    if missing:
        back = [{"lane_id": lane_id, "n": n} for lane_id, n in sorted(missing.items())]
        await connection.execute(SQL["uncount"], {"rows": to_json(back)})
    return inserted
