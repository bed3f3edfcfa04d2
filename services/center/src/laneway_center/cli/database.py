"""What the commands that read the database themselves have in common."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

import typer
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.ext.asyncio import AsyncEngine

from laneway_center.settings import CenterSettings
from laneway_center.store.database import DatabaseAwayError, DatabaseRefusedError, open_engine

DATABASE_URL = str(CenterSettings.model_fields["database_url"].default)


def _database_url(url: str) -> str:
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise typer.BadParameter("is no URL such as postgresql://user:password@host:5432/database") from None
    if not parsed.drivername.startswith("postgres"):
        raise typer.BadParameter(f"is a URL of {parsed.drivername}, not of postgresql")
    return url


DatabaseOption = Annotated[
    str,
    typer.Option(
        "--database-url",
        envvar="LANEWAY_DATABASE_URL",
        metavar="URL",
        callback=_database_url,
        help="PostgreSQL of the center.",
    ),
]


@asynccontextmanager
async def opened(url: str, name: str, *, patient: bool = False) -> AsyncIterator[AsyncEngine]:
    """An engine for the length of a block. `patient`: statements may take as long as they need.

    Raises:
        DatabaseAwayError: nobody answers; says where.
        DatabaseRefusedError: PostgreSQL lets nobody in.
    """
    how = {"statement_timeout_s": None} if patient else {}
    engine = open_engine(url, size=2 if patient else 1, name=name, **how)
    try:
        yield engine
    except DatabaseRefusedError:
        raise
    except DatabaseAwayError as error:
        place = make_url(url)
        where = f"{place.host or 'localhost'}:{place.port or 5432}"
        raise DatabaseAwayError(f"PostgreSQL at {where} can't be reached") from error
    finally:
        await engine.dispose()
