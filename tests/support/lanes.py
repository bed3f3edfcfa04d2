"""Lanes under test: drivers of their own, claims, evidence, and what became of commands."""

from datetime import timedelta
from itertools import count
from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine

from laneway_center.store.claims import ClaimTerms, claim
from laneway_center.store.evidence import Item, JudgeTerms, apply
from laneway_center.store.locked_rows import Subject
from laneway_shared.judgement import Evidence, Policy
from laneway_shared.lifecycle import ResultKind
from support.stored import register, rows, run

GRACE = timedelta(seconds=5)
AT_ONCE = JudgeTerms(grace=GRACE, policy=Policy(base=timedelta()), chance=lambda: 0.0)
_drivers = count(1)


def about(command_id: str, evidence: Evidence) -> Item:
    """Evidence about a command."""
    return Item(subject=Subject(tenant_id=1, command_id=command_id), evidence=evidence)


async def lane_of(engine: AsyncEngine, n: int = 1, **device: Any) -> tuple[str, list[int]]:
    """A driver of its own with n devices, so that tests don't claim each other's commands."""
    number = next(_drivers)
    driver, devices = f"d{number}", [number * 1000 + k for k in range(n)]
    await register(engine, devices, driver=driver, **device)
    return driver, devices


async def claims(engine: AsyncEngine, driver: str, room: int = 1000, **terms: Any) -> list[Any]:
    """What a dispatcher would send now."""
    usual: dict[str, Any] = {"by": "t", "window_ms": 10_000, "grace_ms": 5_000, "most": 100}
    given = ClaimTerms(**(usual | terms))
    return await claim(engine, driver, room=room, profiles=[], terms=given)


async def tell(
    engine: AsyncEngine,
    command_id: str,
    kind: ResultKind,
    attempt: int | None = 1,
    *,
    terms: JudgeTerms = AT_ONCE,
    **said: Any,
) -> None:
    """Evidence comes in; retries are at once unless `terms` say otherwise."""
    evidence = Evidence(kind=kind, attempt=attempt, **said)
    applied = await apply(engine, [about(command_id, evidence)], terms)
    assert applied.orphans == ()


async def absent(engine: AsyncEngine, command_id: str, attempt: int = 1) -> None:
    """Nothing is heard of it until its bound passes, and the scheduler says so."""
    await run(
        engine,
        "UPDATE point_command SET start_by = now() - interval '60 s', quiet_at = now() - interval '40 s',"
        " ack_due_at = ack_due_at - interval '1 day' WHERE command_id = :c",
        c=command_id,
    )
    seen = (await rows(engine, "SELECT clock_timestamp() AS now"))[0].now
    await tell(engine, command_id, ResultKind.DUE, attempt, at=seen)


async def command(engine: AsyncEngine, command_id: str) -> Any:
    """The row of a command."""
    return (await rows(engine, "SELECT * FROM point_command WHERE command_id = :c", c=command_id))[0]


async def status_of(engine: AsyncEngine, command_id: str) -> str:
    """Its state."""
    return str((await command(engine, command_id)).status)


async def waited(engine: AsyncEngine, command_id: str, seconds: float) -> None:
    """It has been waiting for so long."""
    await run(
        engine,
        "UPDATE point_command SET update_time = update_time - :s * interval '1 s' WHERE command_id = :c",
        c=command_id,
        s=seconds,
    )
