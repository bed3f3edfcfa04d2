"""Reading reviews: commands of which nobody knows whether they acted, with all that was said about them."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import RowMapping
from sqlalchemy.ext.asyncio import AsyncEngine

from laneway_center.store.database import transact
from laneway_center.store.statements import SQL


@dataclass(frozen=True, kw_only=True)
class Review:
    """A command that is or was in review. `row` has `since` None if it never was."""

    row: RowMapping
    decision: RowMapping | None  # the line by which it left review last
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
    key = {"tenant_id": tenant_id, "command_id": command_id}

    async def work() -> Review | None:
        async with engine.connect() as connection:
            row = (await connection.execute(SQL["review_of_command"], key)).mappings().first()
            if row is None:
                return None
            decided = await connection.execute(SQL["review_decisions"], {"commands": [row["id"]]})
            events = await connection.execute(SQL["show_events"], key)
            return Review(row=row, decision=decided.mappings().first(), events=events.mappings().all())

    return await transact(work)
