"""The state of the whole, counted in the database every few seconds for the metrics."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import RowMapping
from sqlalchemy.ext.asyncio import AsyncEngine

from laneway_center.store.database import transact
from laneway_center.store.statements import SQL


@dataclass(frozen=True, kw_only=True)
class Readings:
    """Rows as the statements of the same names give them."""

    lanes: Sequence[RowMapping]
    in_flight: Sequence[RowMapping]
    instances: Sequence[RowMapping]
    reviews: int
    dead_ends: int
    oldest_final_s: float


async def read_gauges(engine: AsyncEngine) -> Readings:
    """Count what waits, what is on its way and who lives.

    Raises:
        DatabaseAwayError: PostgreSQL can't be reached.
    """

    async def work() -> Readings:
        async with engine.connect() as connection:
            return Readings(
                lanes=list((await connection.execute(SQL["gauge_lanes"])).mappings()),
                in_flight=list((await connection.execute(SQL["gauge_in_flight"])).mappings()),
                instances=list((await connection.execute(SQL["gauge_instances"])).mappings()),
                reviews=int((await connection.execute(SQL["gauge_reviews"])).scalar_one()),
                dead_ends=int((await connection.execute(SQL["gauge_dead_ends"])).scalar_one()),
                oldest_final_s=float((await connection.execute(SQL["gauge_oldest_final"])).scalar_one()),
            )

    return await transact(work)
