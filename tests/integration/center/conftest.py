"""A migrated database per module, and an engine on it."""

from collections.abc import AsyncIterator

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from laneway_center.store import migrate
from laneway_center.store.database import open_engine


@pytest.fixture(scope="module")
async def engine(database_url: str) -> AsyncIterator[AsyncEngine]:
    """The module's database with the current schema."""
    made = open_engine(database_url, size=12, name="tests")
    await migrate.upgrade(made)
    yield made
    await made.dispose()
