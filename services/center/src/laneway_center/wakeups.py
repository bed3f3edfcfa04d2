"""Waking dispatchers and those who follow commands: in this process at once, in others by coalesced NOTIFYs."""

import asyncio
import contextlib
import time
from collections.abc import Iterable
from typing import Any

import asyncpg
import structlog
from sqlalchemy.engine import make_url

from laneway_center.following import TAIL, Followers, tail_of

log = structlog.get_logger(__name__)

READY = "laneway_lanes_ready"
FOLLOWED = "laneway_commands_followed"
MOVED = "laneway_commands_moved"
RECONNECT_S = 1.0
FOLLOWED_EVERY_S = 2.0
PAYLOAD_MOST = 7_800  # bytes; a NOTIFY's payload ends at 8,000
GOING_ON, PERHAPS_ENDED = ".", "!"  # what stands behind each command in a NOTIFY
ENTRY = TAIL + 1
MOVED_MOST = PAYLOAD_MOST // ENTRY  # commands in one NOTIFY
BACKLOG_MOST = 50_000  # commands not yet told of; beyond it the looks of those who follow have to do
_TROUBLE = (OSError, asyncio.TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError)


class _Ready:
    """Driver services that have lanes which can send, until somebody takes them."""

    def __init__(self) -> None:
        self.event = asyncio.Event()
        self._drivers: frozenset[str] | None = frozenset()

    def add(self, drivers: frozenset[str] | None) -> None:
        """None: nobody knows which."""
        self._drivers = None if drivers is None or self._drivers is None else self._drivers | drivers
        self.event.set()

    def take(self) -> frozenset[str] | None:
        """All that were added since; None: any."""
        drivers, self._drivers = self._drivers, frozenset()
        self.event.clear()
        return drivers


class Wakeups:
    """Never sends inside a transaction: NOTIFY takes a database-wide lock at commit. A lost wake-up costs a poll.

    Of commands that moved nothing is sent while nobody in another process follows any: who does says so.
    """

    def __init__(self, database_url: str, *, listens: bool, serves: bool = False) -> None:
        """`listens`: wakes dispatchers of this process; `serves`: callers of this process may follow commands."""
        self._dsn = make_url(database_url).set(drivername="postgresql").render_as_string(hide_password=False)
        self._listens, self._serves = listens, serves
        self._ready = _Ready()
        self._ready_elsewhere = _Ready()  # not told yet
        self._to_tell = asyncio.Event()
        self._moved: dict[str, bool] = {}  # tails of commands not yet told of; whether all of it left them open
        self._said_at = 0.0
        self.followers = Followers(arrived=self._to_tell)

    def lanes_ready(self, drivers: Iterable[str] | None = None) -> None:
        """Some lane can send (after the commit that made it so): of one of these driver services, or anywhere."""
        named = None if drivers is None else frozenset(drivers)
        self._ready.add(named)
        self._ready_elsewhere.add(named)
        self._to_tell.set()

    def commands_moved(self, command_ids: Iterable[str | None], *, going_on: bool = False) -> None:
        """There are new lines in the timelines of these (after the commit that wrote them).

        `going_on`: none has ended by that, so that whoever waits for ends need not look.
        """
        elsewhere = self.followers.elsewhere
        if not (elsewhere or self.followers.here):
            return
        tails = {tail_of(command_id) for command_id in command_ids if command_id}
        self.followers.tell(tails, going_on=going_on)
        if elsewhere and len(self._moved) < BACKLOG_MOST:
            self._moved |= {tail: going_on and self._moved.get(tail, True) for tail in tails}
            self._to_tell.set()

    async def wait(self, timeout_s: float) -> frozenset[str] | None:
        """Until some lane is ready: the driver services to look at. None: any, also when the time is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._ready.event.wait()
        if not self._ready.event.is_set():
            return None
        return self._ready.take()

    def woken(self) -> frozenset[str] | None:
        """The same of what has come by now, which may be nothing."""
        return self._ready.take()

    async def run(self) -> None:
        """Tell other processes, and hear from them, until cancelled."""
        while True:
            try:
                # nothing is stored here: a commit need not wait for the disk, least of all under NOTIFY's lock
                connection = await asyncpg.connect(
                    self._dsn, timeout=5, command_timeout=10, server_settings={"synchronous_commit": "off"}
                )
                try:
                    await self._serve(connection)
                finally:
                    with contextlib.suppress(*_TROUBLE):
                        await connection.close(timeout=2)
            except _TROUBLE as error:
                log.warning("wakeups.away", error=f"{type(error).__name__}: {error}")
            await asyncio.sleep(RECONNECT_S)

    async def _serve(self, connection: asyncpg.Connection) -> None:
        me = connection.get_server_pid()

        def heard(_connection: Any, pid: int, channel: str, payload: str) -> None:
            if pid == me:
                return  # known here already
            if channel == READY:
                self._ready.add(frozenset(payload.split(",")) if payload else None)
            elif channel == FOLLOWED:
                self.followers.heard()
            else:
                for mark in (GOING_ON, PERHAPS_ENDED):
                    entries = (payload[at : at + ENTRY] for at in range(0, len(payload), ENTRY))
                    tails = [entry[:TAIL] for entry in entries if entry.endswith(mark)]
                    self.followers.tell(tails, going_on=mark == GOING_ON)

        await connection.add_listener(FOLLOWED, heard)
        if self._listens:
            await connection.add_listener(READY, heard)
        if self._serves:
            await connection.add_listener(MOVED, heard)
        while not connection.is_closed():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._to_tell.wait()
            self._to_tell.clear()
            await self._tell(connection)

    async def _tell(self, connection: asyncpg.Connection) -> None:
        if self.followers.here and time.monotonic() >= self._said_at + FOLLOWED_EVERY_S:
            self._said_at = time.monotonic()
            await connection.execute(f"NOTIFY {FOLLOWED}")
        if self._ready_elsewhere.event.is_set():
            drivers = ",".join(sorted(self._ready_elsewhere.take() or ()))
            await connection.execute("SELECT pg_notify($1, $2)", READY, drivers if len(drivers) < PAYLOAD_MOST else "")
        moved = [f"{tail}{GOING_ON if open_ else PERHAPS_ENDED}" for tail, open_ in self._moved.items()]
        self._moved = {}
        for at in range(0, len(moved), MOVED_MOST):
            await connection.execute("SELECT pg_notify($1, $2)", MOVED, "".join(moved[at : at + MOVED_MOST]))
