"""The engine, and what counts as the database being away or a statement being worth a second try."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from functools import lru_cache
from typing import Any, TypeVar

import asyncpg
import orjson
import stamina
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from laneway_shared.errors import LanewayError

ResultT = TypeVar("ResultT")
CONNECT_TIMEOUT_S = 5
STATEMENT_TIMEOUT_S = 30
COLLIDED_PAUSE_S = 0.01, 0.06
MOVES_AT_ONCE = 5  # how often a transaction follows rows that move before it takes a break
_DEADLOCK, _SERIALIZATION = "40P01", "40001"
_REFUSED = ("28", "3D000")  # SQLSTATEs: authorization, no such database
_AWAY = ("08", "57P", "57014", "53", "55P03", "25P03", "25006")  # among them: cancelled, and read-only after failover
_GONE = (
    OSError,
    asyncio.TimeoutError,
    PoolTimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.TooManyConnectionsError,
)
_REFUSED_VALUE = ("22", "23")  # SQLSTATE classes: data exceptions, constraint violations


class DatabaseAwayError(LanewayError):
    """PostgreSQL can't be reached, or didn't answer in time. Try again."""

    code = "DATABASE_AWAY"


class DatabaseRefusedError(DatabaseAwayError):
    """PostgreSQL refuses the connection: check the user, the password and the database in LANEWAY_DATABASE_URL."""

    code = "DATABASE_REFUSED"

    @classmethod
    def because(cls, error: BaseException) -> "DatabaseRefusedError":
        """With PostgreSQL's own reason."""
        reason = str(getattr(error, "orig", None) or error).partition("\n")[0].rpartition(">: ")[2]
        return cls(f"PostgreSQL refuses the connection: {reason}; check LANEWAY_DATABASE_URL")


class RowsMovedError(Exception):
    """What a transaction has read is no longer so where it counts: roll back and do it all again, at once.

    Rows went from one table to another, a device to another lane, or somebody stored a command of the same id.
    """


def open_engine(
    url: str, *, size: int, name: str, statement_timeout_s: float | None = STATEMENT_TIMEOUT_S
) -> AsyncEngine:
    """The engine of one center process.

    Args:
        url: `postgresql://user:password@host:port/database`.
        size: connections at most.
        name: shown as application_name.
        statement_timeout_s: seconds a statement may take; None: as long as it needs (migrations).
    """
    return create_async_engine(
        make_url(url).set(drivername="postgresql+asyncpg"),
        pool_size=size,
        max_overflow=0,
        pool_timeout=5,
        pool_pre_ping=False,
        hide_parameters=True,  # they hold values, and error texts end in logs
        json_serializer=to_json,
        json_deserializer=orjson.loads,
        connect_args={
            "timeout": CONNECT_TIMEOUT_S,
            "command_timeout": statement_timeout_s,
            "server_settings": {
                "application_name": name,
                "timezone": "UTC",
                "idle_in_transaction_session_timeout": "10s",
                "lock_timeout": "20s",
                "jit": "off",
            },
        },
    )


@lru_cache(maxsize=64)
def single(engine: AsyncEngine) -> AsyncEngine:
    """The same connections for work of one statement, which is a transaction of its own: two round trips less."""
    return engine.execution_options(isolation_level="AUTOCOMMIT")


def to_json(value: Any) -> str:
    """Rows for jsonb_to_recordset."""
    return orjson.dumps(value, default=str).decode()


def sqlstate(error: BaseException) -> str | None:
    """The SQLSTATE behind a SQLAlchemy error."""
    origin = getattr(error, "orig", None)
    return getattr(origin, "sqlstate", None) or getattr(getattr(origin, "__cause__", None), "sqlstate", None)


def is_refused(error: BaseException) -> bool:
    """Whether PostgreSQL answers but lets nobody in with this URL."""
    state = getattr(error, "sqlstate", None) or sqlstate(error) or ""
    return state.startswith(_REFUSED)


def is_away(error: BaseException) -> bool:
    """Whether the error means that the database can't be reached, rather than that it refused something."""
    if is_refused_value(error):
        return False
    if isinstance(error, _GONE) or is_refused(error):  # refused while running: it may be let in again
        return True
    if not isinstance(error, DBAPIError):
        return False
    state = sqlstate(error) or ""
    # no SQLSTATE: the driver itself says that the connection is unusable
    return error.connection_invalidated or not state or state.startswith(_AWAY)


def is_refused_value(error: BaseException) -> bool:
    """Whether the database refused a value of a row (so that the other rows of a batch can go on alone)."""
    if isinstance(error, orjson.JSONEncodeError):
        return True
    if not isinstance(error, DBAPIError):
        return False
    at_client = isinstance(getattr(error.orig, "__cause__", None), asyncpg.DataError)
    return at_client or (sqlstate(error) or "").startswith(_REFUSED_VALUE)


def _is_collision(error: Exception) -> bool:
    if isinstance(error, RowsMovedError):
        return True
    return isinstance(error, DBAPIError) and sqlstate(error) in (_DEADLOCK, _SERIALIZATION)


async def _where_rows_are(work: Callable[[], Awaitable[ResultT]]) -> ResultT:
    """Who moved the rows has committed: there is nothing to wait for."""
    for _ in range(MOVES_AT_ONCE):
        try:
            return await work()
        except RowsMovedError:
            continue
    return await work()


async def transact(work: Callable[[], Awaitable[ResultT]]) -> ResultT:
    """Run a transaction, again when it collided with another one.

    Raises:
        DatabaseAwayError: PostgreSQL can't be reached.
    """
    try:
        try:
            return await _where_rows_are(work)
        except Exception as error:
            if not _is_collision(error):
                raise
        await asyncio.sleep(random.uniform(*COLLIDED_PAUSE_S))  # noqa: S311 - who collided shall not meet again
        return await _again(work)
    except Exception as error:
        if is_refused(error):
            raise DatabaseRefusedError.because(error) from error
        if is_away(error) or _is_collision(error):  # collisions without end: it is busy beyond use
            raise DatabaseAwayError from error
        raise


async def _again(work: Callable[[], Awaitable[ResultT]]) -> ResultT:
    # not for the first try, which as a rule is the only one: this machinery costs as much as a statement
    async for attempt in stamina.retry_context(
        on=_is_collision, attempts=7, wait_initial=0.02, wait_jitter=0.05, wait_max=0.5, timeout=None
    ):
        with attempt:
            return await _where_rows_are(work)
    raise AssertionError("unreachable: stamina either returns or raises")


logging.getLogger("sqlalchemy.pool").setLevel(logging.CRITICAL)  # lost connections are reported by who used them
