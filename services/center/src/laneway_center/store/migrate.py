"""Migrating the schema. One process at a time does it; the others wait for it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import AsyncEngine

from laneway_center.store.database import DatabaseAwayError, DatabaseRefusedError, is_away, is_refused

_LOCK = 0x1A9E3A7  # advisory lock of migrations; any number that nobody else uses


def config_for(connection: Connection | None = None) -> Config:
    """Alembic's configuration, without a file."""
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config


async def upgrade(engine: AsyncEngine, revision: str = "head") -> None:
    """Bring the schema up to a revision.

    Raises:
        DatabaseAwayError: PostgreSQL can't be reached.
    """
    await _locked(engine, lambda connection: command.upgrade(config_for(connection), revision))


async def downgrade(engine: AsyncEngine, revision: str = "base") -> None:
    """Take the schema down to a revision; data of dropped tables is gone.

    Raises:
        DatabaseAwayError: PostgreSQL can't be reached.
    """
    await _locked(engine, lambda connection: command.downgrade(config_for(connection), revision))


@dataclass(frozen=True, kw_only=True)
class Revisions:
    """Where the schema is (None: nowhere yet), and where this release needs it."""

    current: str | None
    release: str | None

    @property
    def is_current(self) -> bool:
        """Whether they are the same."""
        return self.current == self.release


async def is_current(engine: AsyncEngine) -> bool:
    """Whether the schema is the one this release needs."""
    return (await _revisions(engine)).is_current


async def revisions(engine: AsyncEngine) -> Revisions:
    """Where the schema is, and where it should be.

    Raises:
        DatabaseAwayError: PostgreSQL can't be reached.
        DatabaseRefusedError: it lets nobody in.
    """
    with _told():
        return await _revisions(engine)


async def _revisions(engine: AsyncEngine) -> Revisions:
    release = ScriptDirectory.from_config(config_for()).get_current_head()
    async with engine.connect() as connection:
        current = await connection.run_sync(lambda sync: MigrationContext.configure(sync).get_current_revision())
    return Revisions(current=current, release=release)


async def _locked(engine: AsyncEngine, work: Callable[[Connection], None]) -> None:
    with _told():
        async with engine.connect() as connection:
            await connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": _LOCK})
            await connection.commit()
            try:
                await connection.run_sync(work)
                await connection.commit()
            finally:
                await connection.execute(text("SELECT pg_advisory_unlock(:key)"), {"key": _LOCK})
                await connection.commit()


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if is_refused(error):
            raise DatabaseRefusedError.because(error) from error
        if is_away(error):
            raise DatabaseAwayError from error
        raise
