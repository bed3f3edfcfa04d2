"""What a claim costs with every second head in back-off, against the same lanes with none."""

import statistics
import time
from collections.abc import Sequence

from sqlalchemy.ext.asyncio import AsyncEngine

from bench.backlog import DRIVER, pile_up
from bench.system import System
from laneway_center.store.claims import ClaimTerms, claim_in
from support.stored import beat, run

ROUNDS = 5
AT_ONCE = 128
_BACK_OFF = (
    """
    WITH head AS (
      UPDATE point_command c SET status = 'RETRY_WAIT', attempt = 1, next_visible_at = now() + interval '1 h'
      WHERE c.seq = 1 AND c.lane_id % 2 = 0 AND c.status = 'PENDING' RETURNING c.id, c.lane_id)
    UPDATE lane l SET holder_id = head.id, ready_at = now() + interval '1 h' FROM head WHERE l.lane_id = head.lane_id
    """,
)
_AND_BACK = (
    """
    UPDATE point_command c SET status = 'PENDING', attempt = 0, next_visible_at = NULL WHERE c.status = 'RETRY_WAIT'
    """,
    """
    UPDATE lane l SET holder_id = NULL, ready_at = now() WHERE l.holder_id IS NOT NULL
    """,
)


async def claims(system: System, commands: int, lanes: int) -> dict[str, float]:
    """Milliseconds of one claim: the medians of rounds that alternate, and their ratio."""
    await pile_up(system, commands, lanes)
    await beat(system.engine, DRIVER)
    ready: list[float] = []
    half: list[float] = []
    for _ in range(ROUNDS):
        for measured, switch in ((ready, _AND_BACK), (half, _BACK_OFF)):
            await _switch(system.engine, switch)
            measured.append(await _claim_ms(system.engine))
    found = {"ready": statistics.median(ready), "half_in_back_off": statistics.median(half)}
    return {name: round(ms, 3) for name, ms in found.items()} | {
        "ratio": round(found["half_in_back_off"] / found["ready"], 3)
    }


async def _switch(engine: AsyncEngine, steps: Sequence[str]) -> None:
    for step in steps:
        await run(engine, step)
    async with engine.connect() as connection:
        autocommit = await connection.execution_options(isolation_level="AUTOCOMMIT")
        for table in ("lane", "point_command"):
            await autocommit.exec_driver_sql(f"VACUUM ANALYZE {table}")


async def _claim_ms(engine: AsyncEngine) -> float:
    """The median of 20 claims, each taken back."""
    terms = ClaimTerms(by="bench", window_ms=10_000, grace_ms=5_000, most=AT_ONCE)
    took = []
    async with engine.connect() as connection:
        for _ in range(20):
            began = time.perf_counter()
            claimed = await claim_in(connection, DRIVER, 1_000_000, (), terms)
            took.append((time.perf_counter() - began) * 1000)
            await connection.rollback()
            assert len(claimed) == AT_ONCE
    return statistics.median(took)
