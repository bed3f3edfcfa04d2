"""A system of processes to be measured: one center, one driver of each kind, a listener, the simulator."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import orjson
from sqlalchemy.ext.asyncio import AsyncEngine

from bench.caller import calling
from laneway_center.store.database import open_engine
from laneway_local import services
from laneway_local.services import Service
from laneway_local.stack import DATABASE_URL, Stack
from support.stack import fresh_database, laneway_services
from support.stored import rows

EVERYTHING = services.all_services()
EnteredT = TypeVar("EnteredT")
POINT = 1
_REGISTER_AT_ONCE = 2000


@dataclass(frozen=True)
class System:
    """What a job works with."""

    stack: Stack
    engine: AsyncEngine
    settings: Mapping[str, str]  # of its services

    @property
    def url(self) -> str:
        """Of the center."""
        return self.stack.service_url("center")

    async def register(self, devices: Sequence[int], driver: str, **fields: Any) -> None:
        """Devices with one point to write; those of driver mqtt are locks that the simulator plays."""
        profile = {"profile": "ydlink-lock"} if driver == "mqtt" else {}
        point = {"pointId": POINT, "name": "volume", "valueType": "int", "min": 0, "max": 1_000_000}
        async with calling(self.url) as center:
            for at in range(0, len(devices), _REGISTER_AT_ONCE):
                some = devices[at : at + _REGISTER_AT_ONCE]
                document = {
                    "drivers": [{"name": driver}],
                    "devices": [
                        {"deviceId": n, "deviceSn": f"SN{n}", "driver": driver, "points": [point]} | profile | fields
                        for n in some
                    ],
                }
                status, said = await center.post("/registry/import", orjson.dumps(document))
                assert status == 200, said

    async def until_ended(self, within_s: float) -> None:
        """Wait until no command is open: each that is has a time at which it is asked after."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within_s
        while (await rows(self.engine, "SELECT EXISTS (SELECT FROM point_command WHERE due_at IS NOT NULL)"))[0][0]:
            assert loop.time() < deadline, "commands are still open"
            await asyncio.sleep(0.02)


@asynccontextmanager
async def fresh_system(infra: Stack, wanted: Sequence[Service], **settings: str) -> AsyncIterator[System]:
    """A fresh database and fresh queues on the servers of `infra`, with these services on them."""
    async with AsyncExitStack() as end:
        database_url = await _entered(end, fresh_database(infra))
        prefix = f"bench{secrets.token_hex(3)}"
        engine = open_engine(database_url, size=2, name="bench", statement_timeout_s=600)
        end.push_async_callback(engine.dispose)
        await _entered(end, laneway_services(infra, wanted, database_url=database_url, prefix=prefix, **settings))
        await asyncio.to_thread(infra.wait_for_heartbeats, wanted)
        yield System(infra, engine, {DATABASE_URL: database_url, "LANEWAY_TOPOLOGY_PREFIX": prefix, **settings})


async def _entered(end: AsyncExitStack, manager: AbstractContextManager[EnteredT]) -> EnteredT:
    """Enter what would block the loop, in a thread; so it is left as well."""
    value = await asyncio.to_thread(manager.__enter__)
    end.push_async_callback(asyncio.to_thread, manager.__exit__, None, None, None)
    return value
