"""A registry and commands in a test database, through the same doors as production's."""

import uuid
from collections.abc import Sequence
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from laneway_center.intake import Accepted, Answer, Intake, Submission
from laneway_center.settings import CenterSettings
from laneway_center.store.instances import mark_listening, record_heartbeats
from laneway_center.store.registry import put_registry
from laneway_center.store.tables import metadata
from laneway_center.wakeups import Wakeups
from laneway_shared.messages import Heartbeat

LEVEL, UNLOCK, SERIAL = 1, 2, 3  # point ids: safe number 0..100, unsafe pulse, read-only


async def register(
    engine: AsyncEngine, devices: Sequence[int], *, driver: str = "virtual", lane_key: str | None = None, **device: Any
) -> None:
    """Devices with the three points, and a live instance of their driver."""
    points = [
        {"point_id": LEVEL, "name": "level", "value_type": "int", "min": 0, "max": 100, "access": "RW"},
        {"point_id": UNLOCK, "name": "unlock", "access": "W", "retry_safety": "unsafe"},
        {"point_id": SERIAL, "name": "serial", "access": "R"},
    ]
    blank = {"value_type": "string", "min": None, "max": None, "retry_safety": "safe"}
    rows = [
        {"tenant_id": 1, "device_id": n, "device_sn": f"SN{n}", "driver": driver, "own_lane_key": lane_key} | device
        for n in devices
    ]
    await put_registry(
        engine,
        drivers=[{"name": driver, "enabled": True}],
        devices=rows,
        points=[{"tenant_id": 1, "device_id": n} | blank | point for n in devices for point in points],
    )
    await beat(engine, driver)


async def beat(engine: AsyncEngine, service: str, *, state: str = "online", instance: str = "i1") -> None:
    """A heartbeat of a driver instance."""
    await mark_listening(engine)
    await record_heartbeats(
        engine,
        [Heartbeat(kind="driver", service=service, instance=instance, version="t", capacity=1000, state=state)],
    )


def submission(device: int, value: str | None = "1", *, point: int = LEVEL, **fields: Any) -> Submission:
    """A WRITE as the HTTP door would hand it on."""
    given: dict[str, Any] = {
        "tenant_id": 1,
        "type": "WRITE",
        "command_id": str(uuid.uuid4()),
        "expire_in_s": 60.0,
    } | fields
    body = f"{device}|{point}|{value}|{given['type']}|{given.get('priority')}"
    return Submission(device_id=device, point_id=point, value=value, body_hash=body.encode().hex(), **given)


def intake(engine: AsyncEngine, database_url: str, **settings: Any) -> Intake:
    """An intake without HTTP in front of it."""
    return Intake(engine, CenterSettings(**settings), Wakeups(database_url, listens=False))


async def store(engine: AsyncEngine, *submissions: Submission, **settings: Any) -> list[Answer]:
    """Submit in one group."""
    return await intake(engine, "postgresql://unused@localhost/unused", **settings).store(submissions)


def ids(answers: Sequence[Answer]) -> list[str]:
    """The command ids of answers that were all accepted."""
    assert all(isinstance(answer, Accepted) for answer in answers), answers
    return [str(answer.command["command_id"]) for answer in answers if isinstance(answer, Accepted)]


async def rows(engine: AsyncEngine, sql: str, **parameters: Any) -> list[Any]:
    """Whatever a test wants to look at."""
    async with engine.connect() as connection:
        return list((await connection.execute(text(sql), parameters)).all())


async def run(engine: AsyncEngine, sql: str, **parameters: Any) -> None:
    """Change a row by hand: move a clock, as it were."""
    async with engine.begin() as connection:
        await connection.execute(text(sql), parameters)


async def clear(engine: AsyncEngine) -> None:
    """Empty the database."""
    await run(engine, f"TRUNCATE {', '.join(table.name for table in metadata.sorted_tables)}")


async def books_balance(engine: AsyncEngine) -> None:
    """Lane rows agree with command rows: depth, holder, state."""
    wrong = await rows(
        engine,
        """
        SELECT l.lane_id, l.state, l.depth, l.holder_id, w.waiting, w.holding FROM lane l
        LEFT JOIN (
          SELECT c.lane_id, count(*) FILTER (WHERE c.status IN ('PENDING', 'RETRY_WAIT')) AS waiting,
                 max(c.id) FILTER (WHERE c.status IN ('DISPATCHING', 'SENT')
                    OR (c.status = 'AWAITING_ACK' AND c.gate = 'ack')
                    OR (c.status = 'RETRY_WAIT' AND c.retry = 'strict')) AS holding
          FROM point_command c GROUP BY c.lane_id) w ON w.lane_id = l.lane_id
        WHERE l.depth <> COALESCE(w.waiting, 0) OR l.holder_id IS DISTINCT FROM w.holding
           OR (l.state = 'idle') <> (COALESCE(w.waiting, 0) = 0 AND w.holding IS NULL)
           OR (l.state = 'busy' AND w.holding IS NULL)
        """,
    )
    assert wrong == []
