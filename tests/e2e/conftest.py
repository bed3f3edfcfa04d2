"""The whole system as processes: two centers, two replicas of each driver, an ack-listener, the simulator."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from laneway_local import services
from laneway_local.stack import Stack
from support.laneway import Laneway, clients
from support.stack import laneway_services

CENTERS = DRIVERS = 2


@pytest.fixture(scope="module")
async def laneway(
    infra: Stack, database_url: str, prefix: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Laneway]:
    """A system of its own for each module."""
    journal: Path = tmp_path_factory.mktemp("virtual") / "journal.ndjson"
    wanted = services.all_services(centers=CENTERS, drivers=DRIVERS)
    manager = laneway_services(
        infra, wanted, database_url=database_url, prefix=prefix, LANEWAY_VIRTUAL_JOURNAL=str(journal)
    )
    await asyncio.to_thread(manager.__enter__)
    try:
        async with clients(infra, prefix, journal, CENTERS) as laneway:
            await laneway.register([1], "virtual")
            await laneway.register([2], "mqtt")
            await laneway.until_online("virtual", "mqtt")
            yield laneway
    finally:
        await asyncio.to_thread(manager.__exit__, None, None, None)
