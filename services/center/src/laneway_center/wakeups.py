"""Waking dispatchers when lanes become ready: in this process at once, in others by one coalesced NOTIFY."""

import asyncio
import contextlib

import asyncpg
import structlog
from sqlalchemy.engine import make_url

log = structlog.get_logger(__name__)

CHANNEL = "laneway_lanes_ready"
RECONNECT_S = 1.0
_TROUBLE = (OSError, asyncio.TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError)


class Wakeups:
    """Never sends inside a transaction: NOTIFY takes a database-wide lock at commit. A lost wake-up costs a poll."""

    def __init__(self, database_url: str, *, listens: bool) -> None:
        self._dsn = make_url(database_url).set(drivername="postgresql").render_as_string(hide_password=False)
        self._listens = listens
        self._ready = asyncio.Event()
        self._to_tell = asyncio.Event()

    def lanes_ready(self) -> None:
        """Some lane can send (after the commit that made it so)."""
        self._ready.set()
        self._to_tell.set()

    async def wait(self, timeout_s: float) -> None:
        """Until some lane is ready, or the time is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._ready.wait()
        self._ready.clear()

    async def run(self) -> None:
        """Tell other processes, and hear from them, until cancelled."""
        while True:
            try:
                connection = await asyncpg.connect(self._dsn, timeout=5, command_timeout=10)
                try:
                    await self._serve(connection)
                finally:
                    with contextlib.suppress(*_TROUBLE):
                        await connection.close(timeout=2)
            except _TROUBLE as error:
                log.warning("wakeups.away", error=f"{type(error).__name__}: {error}")
            await asyncio.sleep(RECONNECT_S)

    async def _serve(self, connection: asyncpg.Connection) -> None:
        if self._listens:
            await connection.add_listener(CHANNEL, lambda *_: self._ready.set())
        while not connection.is_closed():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._to_tell.wait()
            if self._to_tell.is_set():
                self._to_tell.clear()
                await connection.execute(f"NOTIFY {CHANNEL}")
