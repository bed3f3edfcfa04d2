"""How PostgreSQL runs statements that are asked again and again, on tables of some size."""

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from laneway_center.store.claims import live_services
from laneway_center.store.statements import SQL
from support.stored import register

LANES = 50_000


async def test_which_services_have_ready_lanes_is_seen_without_reading_the_lanes(engine: AsyncEngine) -> None:
    """Also once most lanes are ready: for a service that has none of them that would be all lanes, at each poll."""
    for n, driver in enumerate(("busy", "later", "idle")):
        await register(engine, [9200 + n], driver=driver)
    async with engine.begin() as connection:
        await connection.execute(
            text(
                "INSERT INTO lane (tenant_id, lane_key, driver, state, ready_at, next_seq, depth)"
                " SELECT 1, 'many-' || n, CASE n % 2 WHEN 0 THEN 'busy' ELSE 'later' END, 'ready',"
                " now() + (n % 2) * interval '1 hour', 1, 1 FROM generate_series(1, :lanes) AS n"
            ),
            {"lanes": LANES},
        )
        await connection.execute(text("ANALYZE"))
    assert (await live_services(engine)).ready == {"busy"}
    async with engine.connect() as connection:
        plan = (await connection.execute(text(f"EXPLAIN {SQL['live_services']}"))).scalars().all()
    assert any("ix_lane_ready" in line for line in plan), plan
    assert not any("Seq Scan on lane" in line for line in plan), plan
