"""Finding commands whose time has come."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.ext.asyncio import AsyncEngine

from laneway_center.store.database import transact
from laneway_center.store.statements import SQL


@dataclass(frozen=True, kw_only=True)
class Due:
    """An attempt (0: none yet) of which nothing was heard up to `seen_at`, by the database's clock."""

    tenant_id: int
    command_id: str
    attempt: int
    seen_at: datetime


async def take_due(engine: AsyncEngine, *, most: int) -> list[Due]:
    """Commands whose bound has passed; one taker gets each. They come up again unless something is written.

    Raises:
        DatabaseAwayError: PostgreSQL can't be reached.
    """

    async def work() -> list[Due]:
        async with engine.begin() as connection:
            rows = await connection.execute(SQL["take_due"], {"most": most})
            return [Due(tenant_id=r.tenant_id, command_id=r.command_id, attempt=r.attempt, seen_at=r.now) for r in rows]

    return await transact(work)
