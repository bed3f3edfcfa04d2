"""Reading reviews: commands of which nobody knows whether they acted, with all that was said about them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sqlalchemy import RowMapping
from sqlalchemy.ext.asyncio import AsyncEngine

from laneway_center.store.commands import events_of, show_commands
from laneway_center.store.database import transact
from laneway_center.store.statements import SQL
from laneway_shared.lifecycle import Status


@dataclass(frozen=True, kw_only=True)
class Review:
    """A command that is or was in review, hot or archived."""

    command: RowMapping
    began: RowMapping | None  # the line by which it came into review last; None: it never did
    decision: RowMapping | None  # the line by which it left review last
    waiting_behind: int
    events: Sequence[RowMapping]


async def list_reviews(
    engine: AsyncEngine,
    tenant_id: int,
    *,
    after: int,
    most: int,
    device_id: int | None = None,
    driver: str | None = None,
) -> list[RowMapping]:
    """Open reviews, oldest command first, after the cursor (a row id).

    Raises:
        DatabaseAwayError: PostgreSQL can't be reached.
    """
    given = {"tenant_id": tenant_id, "after": after, "most": most, "device_id": device_id, "driver": driver}

    async def work() -> list[RowMapping]:
        async with engine.connect() as connection:
            return list((await connection.execute(SQL["open_reviews"], given)).mappings())

    return await transact(work)


async def show_review(engine: AsyncEngine, tenant_id: int, command_id: str) -> Review | None:
    """One command with its timeline (None: no such command).

    Raises:
        DatabaseAwayError: PostgreSQL can't be reached.
    """
    key = (tenant_id, command_id)

    async def work() -> Review | None:
        async with engine.connect() as connection:
            command = (await show_commands(connection, [key])).get(key)
            if command is None:
                return None
            events = await events_of(connection, tenant_id, command_id)
            depth = await connection.execute(SQL["waiting_in_lane"], {"lane_id": command["lane_id"]})
            return Review(
                command=command,
                began=_last(events, lambda event: event["to_status"]),
                decision=_last(events, lambda event: event["from_status"]),
                waiting_behind=depth.scalar_one(),
                events=events,
            )

    return await transact(work)


def _last(events: Sequence[RowMapping], side: Callable[[RowMapping], str | None]) -> RowMapping | None:
    """The last line that changed the state to, or from, MANUAL_REVIEW."""
    moves = (event for event in reversed(events) if event["from_status"] != event["to_status"])
    return next((event for event in moves if side(event) == Status.MANUAL_REVIEW), None)
