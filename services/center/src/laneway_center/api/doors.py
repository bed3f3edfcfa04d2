"""What every door needs: the tenant, the services behind it, the content type."""

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from datetime import timedelta
from http import HTTPStatus
from typing import Annotated, TypeVar

from fastapi import Depends, Header, Request
from sqlalchemy.ext.asyncio import AsyncEngine

from laneway_center.intake import Intake
from laneway_center.settings import CenterSettings
from laneway_center.store.actions import Operator
from laneway_center.store.database import DatabaseAwayError
from laneway_center.wakeups import Wakeups
from laneway_shared.problems import ProblemError

AnswerT = TypeVar("AnswerT")
PATIENCE_S = 4.0  # a caller hears within this time that the database is away
LONG_PATIENCE_S = 60.0  # for whole registries
OPERATOR_MOST = 64  # characters of a name


@dataclass(frozen=True, kw_only=True)
class Behind:
    """What the doors lead to."""

    engine: AsyncEngine
    intake: Intake
    settings: CenterSettings
    wakeups: Wakeups

    @property
    def grace(self) -> timedelta:
        """How long after its last possible effect absence is judged."""
        return timedelta(seconds=self.settings.grace_s)


async def within(work: Awaitable[AnswerT], patience_s: float = PATIENCE_S) -> AnswerT:
    """What the work gives, or 503 when it takes too long: never a hang.

    Raises:
        DatabaseAwayError: the time is over. What was asked for may or may not be done; asking again is safe.
    """
    try:
        async with asyncio.timeout(patience_s):
            return await work
    except TimeoutError:
        raise DatabaseAwayError from None


# Doors' dependencies are coroutines: FastAPI would run plain functions in threads, which costs more than they do.
async def behind(request: Request) -> Behind:
    """Set by the composition root."""
    found: Behind = request.app.state.behind
    return found


async def tenant(
    x_tenant_id: Annotated[int, Header(ge=1, le=2**63 - 1, description="Tenant; 1 if missing.")] = 1,
) -> int:
    """Whose data a request is about."""
    return x_tenant_id


async def operator_name(
    x_operator: Annotated[
        str | None, Header(description="Who acts: 1 to 64 printable characters, in UTF-8. Required.", examples=["kim"])
    ] = None,
) -> str:
    """Who acts, for what only operators do.

    Raises:
        ProblemError: nobody is named.
    """
    name = _utf8(x_operator or "").strip()
    if not (0 < len(name) <= OPERATOR_MOST and name.isprintable()):
        raise ProblemError(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            "OPERATOR_MISSING",
            f"say who acts, in the header X-Operator: 1 to {OPERATOR_MOST} printable characters",
        )
    return name


def _utf8(header: str) -> str:
    """HTTP hands headers on as if they were Latin-1."""
    try:
        return header.encode("latin-1").decode()
    except UnicodeError:
        return header


async def acting(
    x_operator: Annotated[str | None, Header(description="Who acts, if an operator does: it is written down.")] = None,
    x_reason: Annotated[str | None, Header(max_length=2000, description="Why, for the operators' actions.")] = None,
) -> Operator | None:
    """Who acts, for what callers may do as well. Only an operator's acts are written down.

    Raises:
        ProblemError: the name is none.
    """
    return None if x_operator is None else Operator(name=await operator_name(x_operator), why=_utf8(x_reason or ""))


async def json_body(request: Request) -> None:
    """Refuse bodies that don't say they are JSON."""
    _content_type(request, "application/json")


async def document_body(request: Request) -> None:
    """Refuse bodies that don't say they are JSON or YAML."""
    _content_type(request, "application/json", "application/yaml", "application/x-yaml", "text/yaml")


def _content_type(request: Request, *allowed: str) -> None:
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if given not in allowed:
        raise ProblemError(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            "CONTENT_TYPE",
            f"send {' or '.join(allowed)}, not {given[:100] or 'a body without content type'}",
        )


Doors = Annotated[Behind, Depends(behind)]
Tenant = Annotated[int, Depends(tenant)]
Acting = Annotated[Operator | None, Depends(acting)]
OperatorName = Annotated[str, Depends(operator_name)]
