"""Commands that ended badly, or that a person has to decide, by the evidence that brings them there."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine

from laneway_center.store.evidence import Item, apply
from laneway_center.store.locked_rows import Subject
from laneway_shared.judgement import Evidence
from laneway_shared.lifecycle import ResultKind
from support.lanes import AT_ONCE, claims
from support.stored import UNLOCK, ids, rows, run, store, submission

K = ResultKind
_PAST_BOUND = (
    "UPDATE point_command SET claimed_at = claimed_at - interval '1 h', start_by = start_by - interval '1 h',"
    " quiet_at = quiet_at - interval '1 h', ack_due_at = ack_due_at - interval '1 h' WHERE command_id = ANY(:c)"
)


async def tell(engine: AsyncEngine, command_ids: Sequence[str], kind: ResultKind, **said: Any) -> None:
    """The same evidence about each of these."""
    items = [
        Item(
            subject=Subject(tenant_id=1, command_id=each),
            evidence=Evidence(kind=kind, **({"attempt": 1} | said)),
            detail={"instance": "i1", "responseValue": said.get("response_value"), "errorCode": said.get("error_code")},
        )
        for each in command_ids
    ]
    assert (await apply(engine, items, AT_ONCE)).orphans == ()


async def claimed(engine: AsyncEngine, driver: str) -> list[str]:
    """Claim what may go."""
    return [row["command_id"] for row in await claims(engine, driver, most=1000)]


async def _due(engine: AsyncEngine, command_ids: Sequence[str], attempt: int = 1) -> None:
    await run(engine, _PAST_BOUND, c=command_ids)
    await tell(engine, command_ids, K.DUE, attempt=attempt, at=await _now(engine))


async def _now(engine: AsyncEngine) -> datetime:
    now: datetime = (await rows(engine, "SELECT clock_timestamp() AS now"))[0].now
    return now


async def expired(engine: AsyncEngine, *devices: int, **fields: Any) -> list[str]:
    """Never dispatched, its deadline passed."""
    made = ids(await store(engine, *(submission(device, **fields) for device in devices)))
    await run(engine, "UPDATE point_command SET expire_at = now() WHERE command_id = ANY(:c)", c=made)
    await tell(engine, made, K.DUE, attempt=0, at=await _now(engine))
    return made


async def used_up(engine: AsyncEngine, driver: str, *devices: int, **fields: Any) -> list[str]:
    """DEAD: its one attempt was certainly not sent. One per device."""
    made = ids(await store(engine, *(submission(device, **({"max_attempts": 1} | fields)) for device in devices)))
    assert set(await claimed(engine, driver)) == set(made)
    await tell(engine, made, K.NOT_SENT, error_code="MQTT_AWAY")
    return made


async def given_up(engine: AsyncEngine, driver: str, reason: str, *devices: int) -> list[str]:
    """DEAD: the broker gave the message of an unsafe one up (rejected, delivery_limit)."""
    made = ids(await store(engine, *(submission(device, point=UNLOCK) for device in devices)))
    assert set(await claimed(engine, driver)) == set(made)
    await tell(engine, made, K.LETTER, reason=reason)
    await _due(engine, made)
    return made


async def timed_out(engine: AsyncEngine, driver: str, *devices: int) -> list[str]:
    """TIMEOUT: handed over with gate transport, no answer."""
    made = ids(await store(engine, *(submission(device, gate="transport") for device in devices)))
    assert set(await claimed(engine, driver)) == set(made)
    await tell(engine, made, K.TRANSMITTED)
    await _due(engine, made)
    return made


async def in_review(engine: AsyncEngine, driver: str, *devices: int, **fields: Any) -> list[str]:
    """Unsafe, started, no answer."""
    made = ids(await store(engine, *(submission(device, point=UNLOCK, **fields) for device in devices)))
    assert set(await claimed(engine, driver)) == set(made)
    await tell(engine, made, K.STARTED)
    await _due(engine, made)
    return made
