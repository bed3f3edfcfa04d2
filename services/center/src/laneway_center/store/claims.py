"""Claiming the heads of free lanes, and marking what the broker confirmed."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy import RowMapping
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from laneway_center.store.database import single, to_json, transact
from laneway_center.store.statements import SQL
from laneway_shared.lifecycle import Status, sources


@dataclass(frozen=True, kw_only=True)
class LiveServices:
    """Who could run commands now: capacity by driver service, and the profiles that are listened for."""

    capacity: dict[str, int]
    ready: frozenset[str]  # driver services of which some lane could send
    profiles: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ClaimTerms:
    """How claims are made."""

    by: str
    window_ms: int
    grace_ms: int
    most: int
    ageing_s: float = 60.0  # seconds of waiting that raise a priority by one


class Claims(list[RowMapping]):
    """Claimed attempts. `looked`: lanes looked at for them; `handed_to`: where some of these can send now."""

    def __init__(self, rows: Iterable[RowMapping], *, looked: int) -> None:
        super().__init__(rows)
        self.looked = looked
        self.handed_to: frozenset[str] = frozenset()  # driver services


async def live_services(engine: AsyncEngine) -> LiveServices:
    """Driver services and ack-listener profiles with a live instance.

    Raises:
        DatabaseAwayError: PostgreSQL can't be reached.
    """

    async def work() -> LiveServices:
        async with single(engine).connect() as connection:
            rows = (await connection.execute(SQL["live_services"])).all()
        profiles = sorted({profile for row in rows for profile in row.profiles or ()})
        capacity = {row.service: row.capacity or 0 for row in rows if row.drives}
        ready = frozenset(row.service for row in rows if row.drives and row.ready)
        return LiveServices(capacity=capacity, ready=ready, profiles=tuple(profiles))

    return await transact(work)


async def claim(engine: AsyncEngine, driver: str, *, room: int, profiles: Sequence[str], terms: ClaimTerms) -> Claims:
    """Claim heads of ready lanes of one driver service; each row is all a command message needs.

    Args:
        engine: the center's database.
        driver: the driver service.
        room: commands that may be on their way to the service at once.
        profiles: those a live ack-listener listens for.
        terms: who claims, windows, batch size.

    Raises:
        DatabaseAwayError: PostgreSQL can't be reached; nothing is claimed.
    """

    async def work() -> Claims:
        async with engine.begin() as connection:
            return await claim_in(connection, driver, room, profiles, terms)

    return await transact(work)


async def claim_in(
    connection: AsyncConnection, driver: str, room: int, profiles: Sequence[str], terms: ClaimTerms
) -> Claims:
    """The same within a transaction of the caller's."""
    await connection.execute(SQL["lock_room"], {"driver": driver})
    locked = await connection.execute(SQL["lock_ready_lanes"], {"driver": driver, "room": room, "most": terms.most})
    lanes = [row.lane_id for row in locked]
    if not lanes:
        return Claims((), looked=0)
    result = await connection.execute(
        SQL["claim_heads"],
        {
            "lanes": lanes,
            "driver": driver,
            "profiles": list(profiles),
            "by": terms.by,
            "window_ms": terms.window_ms,
            "grace_ms": terms.grace_ms,
            "ageing_s": terms.ageing_s,
            "sources": sources(Status.DISPATCHING),
        },
    )
    claimed = Claims(result.mappings(), looked=len(lanes))
    headless = sorted(set(lanes) - {row["lane_id"] for row in claimed})
    if headless:
        given = {"lanes": headless, "ageing_s": terms.ageing_s}
        settled = (await connection.execute(SQL["settle_headless_lanes"], given)).scalars()
        claimed.handed_to = frozenset(settled) - {None}
    return claimed


async def hand_on(engine: AsyncEngine, ageing_s: float) -> None:
    """Let lanes at drivers that are away follow their next command, which may be at another driver.

    Raises:
        DatabaseAwayError: PostgreSQL can't be reached.
    """

    async def work() -> None:
        async with engine.begin() as connection:
            stray = list((await connection.execute(SQL["stray_lanes"])).scalars())
            if not stray:
                return
            locked = await connection.execute(SQL["lock_lanes"], {"lanes": sorted(stray)})
            still = [row.lane_id for row in locked if row.state == "ready"]  # as they are under the lock
            if still:
                await connection.execute(SQL["settle_headless_lanes"], {"lanes": still, "ageing_s": ageing_s})

    await transact(work)


async def confirm_sent(engine: AsyncEngine, attempts: Sequence[tuple[int, int]]) -> None:
    """Mark (row id, attempt) pairs as SENT where no result was faster.

    Raises:
        DatabaseAwayError: PostgreSQL can't be reached.
    """
    rows = to_json([{"id": row, "attempt": attempt} for row, attempt in attempts])

    async def work() -> None:
        async with single(engine).connect() as connection:
            await connection.execute(SQL["confirm_sent"], {"rows": rows, "sources": sources(Status.SENT)})

    await transact(work)
