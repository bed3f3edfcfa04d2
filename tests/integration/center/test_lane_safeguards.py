"""Each rule of a lane, in a history that it decides: with the rule the checker finds nothing, without it the breach.

The rule is switched off by replacing just it.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from laneway_center.store import admission, lanes, locked_rows, migrate, withdrawals
from laneway_center.store.actions import Operator
from laneway_center.store.database import open_engine
from laneway_center.store.lanes import hold_lane, release_lane, skip_head
from laneway_center.store.locked_rows import Subject
from laneway_center.store.statements import SQL
from laneway_center.store.withdrawals import cancel
from laneway_center.verify.facts import Execution, Journal
from laneway_center.verify.findings import Terms
from laneway_center.verify.rules import check
from laneway_center.verify.snapshot import load
from laneway_shared.lifecycle import TRANSITIONS, WAITING, ResultKind, Status
from laneway_shared.problems import ProblemError
from support.histories import make_time_virtual
from support.lanes import GRACE, absent, claims, lane_of, status_of, tell
from support.stored import UNLOCK, clear, ids, rows, run, store, submission

K = ResultKind
SHIFT = Operator(name="shift", why="test")
TERMS = Terms(ageing=timedelta(seconds=60), slack=timedelta(days=1))
Script = Callable[[AsyncEngine], Awaitable[None]]
Switch = Callable[[pytest.MonkeyPatch], None]


@pytest.fixture(scope="module")
async def own_engine(database_url: str) -> AsyncIterator[AsyncEngine]:
    """A database of the current schema in which time is the test's."""
    made = open_engine(database_url, size=4, name="tests")
    await migrate.upgrade(made)
    await make_time_virtual(made)
    yield made
    await made.dispose()


@pytest.fixture
async def stage(own_engine: AsyncEngine) -> AsyncEngine:
    """The database, empty."""
    await clear(own_engine)
    return own_engine


async def serve(engine: AsyncEngine, driver: str, *, terms: dict[str, Any] | None = None) -> list[str]:
    """Dispatch and do whatever may go, until nothing may any more."""
    done: list[str] = []
    while found := await claims(engine, driver, **(terms or {})):
        for row in found:
            done.append(str(row["command_id"]))
            await tell(engine, done[-1], K.SUCCESS, row["attempt"])
    return done


# ------------------------------------------------------------------------------------------ scripts
async def a_lane_is_held(engine: AsyncEngine) -> None:
    driver, [device] = await lane_of(engine)
    lane = f"device:{device}"
    [first, _] = ids(await store(engine, submission(device, "1"), submission(device, "2")))
    await claims(engine, driver)
    await hold_lane(engine, 1, lane, SHIFT)
    await tell(engine, first, K.SUCCESS)
    await serve(engine, driver)
    if (await rows(engine, "SELECT 1 FROM lane WHERE operator_hold IS NOT NULL")) != []:
        await release_lane(engine, 1, lane, SHIFT)
    await serve(engine, driver)


async def a_review_closes_a_lane(engine: AsyncEngine) -> None:
    driver, [device] = await lane_of(engine, review_policy="hold")
    [doubtful, _] = ids(await store(engine, submission(device, point=UNLOCK), submission(device)))
    await claims(engine, driver)
    await tell(engine, doubtful, K.STARTED)
    await absent(engine, doubtful)
    await serve(engine, driver)


async def three_wait(engine: AsyncEngine) -> None:
    driver, [device] = await lane_of(engine)
    await store(engine, *(submission(device, str(n)) for n in range(3)))
    await serve(engine, driver)


async def one_waits_longer_than_its_priority_is_worth(engine: AsyncEngine) -> None:
    driver, [device] = await lane_of(engine)
    await store(engine, submission(device, "1", priority=2, expire_in_s=600))
    await run(engine, "UPDATE virtual.clock SET at = at + interval '121 s'")
    await store(engine, submission(device, "2", priority=0))
    await serve(engine, driver)


async def a_grant_is_revoked(engine: AsyncEngine) -> None:
    driver, [device] = await lane_of(engine)
    await store(engine, submission(device, "1", intent_key="k", purpose="grant"))
    await store(engine, submission(device, "0", intent_key="k", purpose="revoke"))
    await serve(engine, driver)


async def a_value_is_replaced(engine: AsyncEngine) -> None:
    driver, [device] = await lane_of(engine)
    await store(engine, submission(device, "1", intent_key="k"))
    await store(engine, submission(device, "2", intent_key="k", merge="latest"))
    await serve(engine, driver)


async def a_full_lane_gives_up_its_oldest(engine: AsyncEngine) -> None:
    driver, [device] = await lane_of(engine, depth_limit=2, on_full="drop_oldest")
    await store(engine, submission(device, point=UNLOCK), *(submission(device, str(n)) for n in range(3)))
    await serve(engine, driver)


async def a_grant_is_skipped_before_its_revocation(engine: AsyncEngine) -> None:
    driver, [device] = await lane_of(engine)
    [grant] = ids(await store(engine, submission(device, "1", intent_key="k", purpose="grant")))
    await claims(engine, driver)
    await store(engine, submission(device, "0", intent_key="k", purpose="revoke"))
    await tell(engine, grant, K.NOT_SENT)
    await skip_head(engine, 1, f"device:{device}", SHIFT, grace=GRACE, ageing_s=60)
    await serve(engine, driver)


async def a_relaxed_retry_meets_a_newer_one_of_its_intent(engine: AsyncEngine) -> None:
    driver, [device] = await lane_of(engine, retry="relaxed")
    [older] = ids(await store(engine, submission(device, "1", intent_key="k")))
    await claims(engine, driver)
    await store(engine, submission(device, "2", intent_key="k"))
    await tell(engine, older, K.NOT_SENT)
    await serve(engine, driver)


async def one_on_its_way_is_cancelled(engine: AsyncEngine) -> None:
    driver, [device] = await lane_of(engine)
    [flying] = ids(await store(engine, submission(device, "1")))
    await claims(engine, driver)
    try:
        await cancel(engine, Subject(tenant_id=1, command_id=flying), grace=GRACE)
    except ProblemError as problem:
        if problem.code != "TOO_LATE":
            raise
    await tell(engine, flying, K.SUCCESS)


# ---------------------------------------------------------------------------------- without the rules
def without(name: str, part: str, instead: str = "") -> Switch:
    """A statement without a part of it."""

    def off(patch: pytest.MonkeyPatch) -> None:
        assert part in SQL[name].text
        patch.setitem(SQL, name, text(SQL[name].text.replace(part, instead)))

    return off


def no_intents(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(admission, "_superseded", lambda *_: None)


def skips_only_move(patch: pytest.MonkeyPatch) -> None:
    async def never(*_: Any) -> bool:
        return False

    patch.setattr(lanes, "_is_overtaken", never)


def anything_can_be_cancelled(patch: pytest.MonkeyPatch) -> None:
    on_its_way = frozenset({Status.DISPATCHING})
    patch.setattr(withdrawals, "WAITING", WAITING | on_its_way)
    allowed = dict(TRANSITIONS) | {Status.DISPATCHING: TRANSITIONS[Status.DISPATCHING] | {Status.CANCELLED}}
    patch.setattr(locked_rows.LockedRows.record, "__kwdefaults__", {"table": allowed})


NO_HOLDS = without("lock_ready_lanes", "AND operator_hold IS NULL AND review_holds = 0")
RESULTS_OPEN_LANES = without("write_back", "UPDATE lane l SET", "UPDATE lane l SET operator_hold = NULL,")
NEWEST_FIRST = without("claim_heads", "ORDER BY c.seq LIMIT 1", "ORDER BY c.seq DESC LIMIT 1")
HARDLY_ANY_AGEING = without("claim_heads", "/ :ageing_s", "/ (:ageing_s * 99)")
ANYTHING_IS_DROPPED = without("oldest_safe", "AND c.retry_safety = 'safe'")
NOTHING_IS_OVERTAKEN = without("commands_of_evidence", "c.retry = 'relaxed' AND", "false AND")
CASES: list[tuple[Script, Switch, str]] = [
    (a_lane_is_held, NO_HOLDS, "held"),
    (a_lane_is_held, RESULTS_OPEN_LANES, "held"),
    (a_review_closes_a_lane, NO_HOLDS, "held"),
    (three_wait, NEWEST_FIRST, "lane_order"),
    (one_waits_longer_than_its_priority_is_worth, HARDLY_ANY_AGEING, "lane_order"),
    (a_grant_is_revoked, no_intents, "intents"),
    (a_value_is_replaced, no_intents, "intents"),
    (a_full_lane_gives_up_its_oldest, ANYTHING_IS_DROPPED, "withdrawn"),
    (a_grant_is_skipped_before_its_revocation, skips_only_move, "intents"),
    (a_relaxed_retry_meets_a_newer_one_of_its_intent, NOTHING_IS_OVERTAKEN, "intents"),
    (one_on_its_way_is_cancelled, anything_can_be_cancelled, "transitions"),
]


@pytest.mark.parametrize(("script", "switch", "rule"), CASES, ids=[f"{c[0].__name__}-{c[2]}" for c in CASES])
async def test_the_checker_finds_what_a_rule_of_the_lane_prevents(
    stage: AsyncEngine, monkeypatch: pytest.MonkeyPatch, script: Script, switch: Switch, rule: str
) -> None:
    await script(stage)
    assert await broken(stage) == set()
    await clear(stage)
    switch(monkeypatch)
    await script(stage)
    assert rule in await broken(stage)


async def test_what_is_done_after_a_withdrawal_is_found(stage: AsyncEngine) -> None:
    driver, [device] = await lane_of(stage)
    [one] = ids(await store(stage, submission(device, "1")))
    await claims(stage, driver)
    await tell(stage, one, K.NOT_SENT)
    await cancel(stage, Subject(tenant_id=1, command_id=one), grace=GRACE)
    assert await status_of(stage, one) == Status.CANCELLED
    facts = await load(stage, None, lambda *_: None)
    at = facts.events[-1].at + timedelta(seconds=2)
    did = Execution(journal="j", place=1, device=f"SN{device}", at=at, command_id=one, attempt=1)
    found = check(replace(facts, at=at, journals=(Journal(name="j", executions=(did,)),)), TERMS)
    assert [name for name, findings in found.items() if findings] == ["withdrawn_not_executed"]


async def broken(engine: AsyncEngine) -> set[str]:
    """Rules with findings."""
    facts = await load(engine, None, lambda *_: None)
    return {name for name, found in check(facts, TERMS).items() if found}
