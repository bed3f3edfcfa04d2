"""Migrations on a real PostgreSQL: up, down, and the same as the models."""

from collections.abc import Callable

from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection

from laneway_center.store import migrate
from laneway_center.store.database import open_engine
from laneway_center.store.tables import metadata
from support.stored import rows


async def test_up_down_up_and_the_models_agree(new_database: Callable[[], str]) -> None:
    engine = open_engine(new_database(), size=4, name="tests")
    try:
        assert not await migrate.is_current(engine)
        await migrate.upgrade(engine)
        await migrate.upgrade(engine)
        assert await migrate.is_current(engine)
        async with engine.connect() as connection:
            assert await connection.run_sync(differences) == []
        await migrate.downgrade(engine)
        left = await rows(engine, "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace")
        assert {row.relname for row in left} <= {"alembic_version", "alembic_version_pkc"}
        await migrate.upgrade(engine)
        assert await migrate.is_current(engine)
    finally:
        await engine.dispose()


def differences(connection: Connection) -> list[object]:
    context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
    return list(compare_metadata(context, metadata))
