"""A center's HTTP doors without a network in between, on a real database."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx

from laneway_center.app import Center, build_app
from laneway_center.settings import CenterSettings


@asynccontextmanager
async def open_doors(database_url: str) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a center with role api; no broker is needed."""
    center = Center(CenterSettings(database_url=database_url, roles="api"))
    transport = httpx.ASGITransport(build_app(center), raise_app_exceptions=False)
    workers = [asyncio.ensure_future(center.intake.run()) for _ in range(2)]
    async with httpx.AsyncClient(transport=transport, base_url="http://center") as client:
        yield client
    for worker in workers:
        worker.cancel()
    await asyncio.gather(*workers, return_exceptions=True)
    await center.engine.dispose()
