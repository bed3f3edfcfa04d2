"""What the rules of a lane promise, on a real PostgreSQL: gates, retries, priorities, intents, bounds, holds."""

import asyncio
import random
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from laneway_center.intake import Accepted, Answer
from laneway_center.store.actions import Operator
from laneway_center.store.evidence import JudgeTerms
from laneway_center.store.lanes import hold_lane, read_lane, release_lane, skip_head
from laneway_center.store.locked_rows import Subject
from laneway_center.store.withdrawals import cancel
from laneway_shared.judgement import Policy
from laneway_shared.lifecycle import ResultKind, Status
from laneway_shared.problems import ProblemError
from support.lanes import GRACE, absent, claims, command, lane_of, status_of, tell, waited
from support.stored import LEVEL, UNLOCK, books_balance, ids, intake, register, rows, run, store, submission

K = ResultKind
SHIFT = Operator(name="shift", why="test")
LATER = JudgeTerms(grace=GRACE, policy=Policy(base=timedelta(seconds=10)), chance=lambda: 0.0)


async def next_up(engine: AsyncEngine, driver: str, **terms: Any) -> str | None:
    found = await claims(engine, driver, **terms)
    assert len(found) <= 1
    return str(found[0]["command_id"]) if found else None


async def statuses(engine: AsyncEngine, commands: Sequence[str]) -> list[str]:
    return [await status_of(engine, each) for each in commands]


def codes(answers: Sequence[Answer]) -> list[str]:
    return [answer.code if isinstance(answer, ProblemError) else "" for answer in answers]


async def withdraw(engine: AsyncEngine, command_id: str) -> Any:
    return await cancel(engine, Subject(tenant_id=1, command_id=command_id), grace=GRACE, why="test")


# ------------------------------------------------------------------------------------------ intents


async def test_a_revocation_supersedes_its_grant_and_goes_before_all_others(engine: AsyncEngine) -> None:
    driver, [device] = await lane_of(engine)
    given = ids(await store(engine, *(submission(device, str(n), intent_key=f"face:{n}") for n in range(10))))
    revocation, unrelated = ids(
        await store(
            engine,
            submission(device, "0", intent_key="face:4", purpose="revoke"),
            submission(device, "99", priority=0),
        )
    )
    after = await statuses(engine, given)
    assert after == ["PENDING"] * 4 + ["SUPERSEDED"] + ["PENDING"] * 5
    gone = await command(engine, given[4])
    assert (gone.error_code, gone.finished_at is not None) == ("REVOKED", True)
    await books_balance(engine)
    seen = []
    for _ in range(11):
        one = await next_up(engine, driver)
        assert one is not None
        seen.append(one)
        await tell(engine, one, K.SUCCESS)
    assert seen == [revocation, unrelated, *(each for each in given if each != given[4])]
    assert await next_up(engine, driver) is None


async def test_a_revocation_leaves_alone_what_is_on_its_way_and_other_devices(engine: AsyncEngine) -> None:
    driver, [device, other] = await lane_of(engine, 2, lane_key="gate")
    flying, elsewhere = ids(await store(engine, submission(device, intent_key="k"), submission(other, intent_key="k")))
    assert await next_up(engine, driver) == flying
    [revocation] = ids(await store(engine, submission(device, intent_key="k", purpose="revoke")))
    assert await statuses(engine, [flying, elsewhere]) == ["DISPATCHING", "PENDING"]
    await tell(engine, flying, K.SUCCESS)
    assert await next_up(engine, driver) == revocation


async def test_merge_latest_replaces_those_that_wait(engine: AsyncEngine) -> None:
    driver, [device] = await lane_of(engine)
    latest: dict[str, Any] = {"intent_key": "k", "merge": "latest"}
    flying, *rest = ids(await store(engine, *(submission(device, str(n), **latest) for n in range(1))))
    assert await next_up(engine, driver) == flying
    rest = ids(await store(engine, *(submission(device, str(n), **latest) for n in range(5))))
    assert await statuses(engine, rest) == ["SUPERSEDED"] * 4 + ["PENDING"], "also within one group"
    [event] = await rows(
        engine,
        "SELECT e.detail FROM point_command_event e JOIN point_command c ON c.id = e.command_pk"
        " WHERE c.command_id = :c AND e.kind = 'SUPERSEDED'",
        c=rest[0],
    )
    assert event.detail == {"newer": rest[1]}
    await books_balance(engine)


async def test_reject_duplicate_answers_with_the_live_one(engine: AsyncEngine) -> None:
    driver, [device] = await lane_of(engine)
    once: dict[str, Any] = {"intent_key": "k", "merge": "reject_duplicate"}
    [first] = ids(await store(engine, submission(device, **once)))
    for moved in (False, True):
        if moved:
            assert await next_up(engine, driver) == first
        [again] = await store(engine, submission(device, **once))
        assert isinstance(again, Accepted)
        assert (str(again.command["command_id"]), again.created) == (first, False)
    [revocation] = ids(await store(engine, submission(device, intent_key="k", purpose="revoke")))
    [granted] = ids(await store(engine, submission(device, **once)))
    assert granted not in {first, revocation}, "after a revocation it is no duplicate"
    await tell(engine, first, K.SUCCESS)
    assert await next_up(engine, driver) == revocation
    await books_balance(engine)


async def test_merges_at_the_same_time_leave_one(engine: AsyncEngine) -> None:
    _, [device] = await lane_of(engine)
    door = intake(engine, "postgresql://unused@localhost/unused")
    every = [submission(device, str(n), intent_key="k", merge="latest") for n in range(12)]
    await asyncio.gather(*(door.store([each]) for each in every))
    left = await rows(
        engine, "SELECT status, count(*) AS n FROM point_command WHERE device_id = :d GROUP BY 1", d=device
    )
    assert {row.status: row.n for row in left} == {"PENDING": 1, "SUPERSEDED": 11}
    once = [submission(device, str(n), intent_key="j", merge="reject_duplicate") for n in range(12)]
    await asyncio.gather(*(door.store([each]) for each in once))
    [row] = await rows(
        engine, "SELECT count(*) AS n FROM point_command WHERE device_id = :d AND intent_key = 'j'", d=device
    )
    assert row.n == 1
    await books_balance(engine)


async def test_the_same_id_twice_at_once_supersedes_nothing_twice(engine: AsyncEngine) -> None:
    _, [device] = await lane_of(engine)
    door = intake(engine, "postgresql://unused@localhost/unused")
    for round_ in range(10):
        waiting = ids(await store(engine, submission(device, "1", intent_key=f"r{round_}")))
        newer = submission(device, "2", intent_key=f"r{round_}", merge="latest")
        answers = await asyncio.gather(*(door.store([newer]) for _ in range(3)))
        created = [a.created for part in answers for a in part if isinstance(a, Accepted)]
        assert sorted(created) == [False, False, True]
        assert await statuses(engine, [*waiting, newer.command_id]) == ["SUPERSEDED", "PENDING"]
    await books_balance(engine)


# ----------------------------------------------------------------------------------------- priorities


async def test_waiting_raises_a_priority(engine: AsyncEngine) -> None:
    driver, [device] = await lane_of(engine)
    slow, other = ids(await store(engine, submission(device, "1", priority=3), submission(device, "2", priority=2)))
    await waited(engine, slow, 125)
    urgent = ids(await store(engine, submission(device, "3", priority=0), submission(device, "4", priority=1)))
    order = []
    while (one := await next_up(engine, driver, ageing_s=60)) is not None:
        order.append(one)
        await tell(engine, one, K.SUCCESS)
    # after two steps of 60 s the 3 counts as a 1, and is older than the other 1
    assert order == [urgent[0], slow, urgent[1], other]


async def test_a_low_priority_behind_a_steady_stream_of_urgent_ones_runs_within_the_ageing_bound(
    engine: AsyncEngine,
) -> None:
    driver, [device] = await lane_of(engine)
    [low] = ids(await store(engine, submission(device, "1", priority=4)))
    served, steps = [], 0
    while low not in served:
        await store(engine, submission(device, "2", priority=0), submission(device, "3", priority=0))
        served.append(await next_up(engine, driver, ageing_s=1000))
        assert served[-1] is not None
        await tell(engine, served[-1], K.SUCCESS)
        await waited(engine, low, 100)  # per command; two urgent ones come for each served
        steps += 1
        assert steps <= 4 * 10 + 1, "beyond the bound of four times the ageing"
    assert steps >= 4 * 10, "before it, the urgent ones went first"


async def test_a_priority_lower_than_any_in_the_lane_is_found_after_a_retry(engine: AsyncEngine) -> None:
    driver, [device] = await lane_of(engine, retry="relaxed")
    [nine] = ids(await store(engine, submission(device, priority=9)))
    assert await next_up(engine, driver) == nine
    [zero] = ids(await store(engine, submission(device, "2", priority=0)))
    await tell(engine, nine, K.NOT_SENT)
    for expected in (zero, nine):
        assert await next_up(engine, driver) == expected
        await tell(engine, expected, K.SUCCESS, None)


# -------------------------------------------------------------------------------------------- retries


async def test_strict_waits_with_its_head_and_relaxed_lets_the_others_go_first(engine: AsyncEngine) -> None:
    for retry in ("strict", "relaxed"):
        driver, [device] = await lane_of(engine, retry=retry)
        first, second = ids(await store(engine, submission(device, "1"), submission(device, "2")))
        assert await next_up(engine, driver) == first
        await tell(engine, first, K.NOT_SENT, terms=LATER)
        if retry == "relaxed":
            assert await next_up(engine, driver) == second
            await tell(engine, second, K.SUCCESS)
        assert await next_up(engine, driver) is None, "the first waits for its time"
        await _its_time_has_come(engine, first)
        assert await next_up(engine, driver) == first
        if retry == "strict":
            await tell(engine, first, K.NOT_SENT, 2, terms=LATER)
            assert await next_up(engine, driver) is None
            await _its_time_has_come(engine, first)
            assert await next_up(engine, driver) == first
            await tell(engine, first, K.SUCCESS, 3)
            assert await next_up(engine, driver) == second
        await books_balance(engine)


async def _its_time_has_come(engine: AsyncEngine, command_id: str) -> None:
    await run(engine, "UPDATE point_command SET next_visible_at = now() WHERE command_id = :c", c=command_id)
    await run(
        engine,
        "UPDATE lane SET ready_at = now() WHERE lane_id = (SELECT lane_id FROM point_command WHERE command_id = :c)",
        c=command_id,
    )


async def test_attempts_used_up_is_dead_and_frees_the_lane(engine: AsyncEngine) -> None:
    driver, [device] = await lane_of(engine)
    first, second = ids(await store(engine, submission(device, "1", max_attempts=2), submission(device, "2")))
    for attempt in (1, 2):
        assert await next_up(engine, driver) == first
        await tell(engine, first, K.NOT_SENT, attempt)
    assert await status_of(engine, first) == Status.DEAD
    assert await next_up(engine, driver) == second
    await books_balance(engine)


async def test_a_relaxed_retry_behind_a_newer_command_of_its_intent_is_superseded(engine: AsyncEngine) -> None:
    driver, [device] = await lane_of(engine, retry="relaxed")
    [first] = ids(await store(engine, submission(device, "1", intent_key="k")))
    assert await next_up(engine, driver) == first
    [newer] = ids(await store(engine, submission(device, "2", intent_key="k")))
    await tell(engine, first, K.NOT_SENT)
    assert await statuses(engine, [first, newer]) == ["SUPERSEDED", "PENDING"]
    assert (await command(engine, first)).error_code == "OVERTAKEN"
    assert await next_up(engine, driver) == newer
    await tell(engine, newer, K.NOT_SENT)
    [newest] = ids(await store(engine, submission(device, "3", intent_key="k")))
    assert await statuses(engine, [newer, newest]) == ["SUPERSEDED", "PENDING"], "also when it comes later"
    await books_balance(engine)


# ---------------------------------------------------------------------------------------------- gates


async def test_gate_ack_keeps_the_next_one_back_until_the_answer(engine: AsyncEngine) -> None:
    driver, [device] = await lane_of(engine)
    first, second = ids(await store(engine, submission(device, "1"), submission(device, "2")))
    assert await next_up(engine, driver) == first
    await tell(engine, first, K.TRANSMITTED)
    assert await next_up(engine, driver) is None
    await tell(engine, first, K.SUCCESS)
    assert await next_up(engine, driver) == second


@pytest.mark.parametrize("point", [LEVEL, UNLOCK])
async def test_gate_transport_lets_the_next_one_go_and_never_retries(engine: AsyncEngine, point: int) -> None:
    driver, [device] = await lane_of(engine)
    quiet, answered, last = ids(
        await store(engine, *(submission(device, str(n), point=point, gate="transport") for n in range(3)))
    )
    assert await next_up(engine, driver) == quiet
    await tell(engine, quiet, K.TRANSMITTED)
    assert await next_up(engine, driver) == answered, "the first one's answer is still due"
    await tell(engine, answered, K.TRANSMITTED)
    assert await next_up(engine, driver) == last
    await tell(engine, answered, K.SUCCESS)
    await absent(engine, quiet)
    overdue = Status.TIMEOUT if point == LEVEL else Status.MANUAL_REVIEW
    assert await statuses(engine, [quiet, answered]) == [overdue, "SUCCESS"]
    await tell(engine, last, K.TRANSMITTED)
    await tell(engine, last, K.FAILED, retryable=True)
    assert await status_of(engine, last) == Status.FAILED
    assert await next_up(engine, driver) is None
    await books_balance(engine)


async def test_ack_none_is_done_when_it_is_handed_over(engine: AsyncEngine) -> None:
    driver, [device] = await lane_of(engine)
    await run(engine, "UPDATE point SET ack = 'none' WHERE device_id = :d AND point_id = :p", d=device, p=LEVEL)
    first, second = ids(await store(engine, submission(device, "1"), submission(device, "2")))
    assert await next_up(engine, driver) == first
    await tell(engine, first, K.TRANSMITTED)
    assert await status_of(engine, first) == Status.SUCCESS
    assert await next_up(engine, driver) == second


# --------------------------------------------------------------------------------------------- cancel


async def test_a_waiting_command_can_be_withdrawn_and_no_other(engine: AsyncEngine) -> None:
    driver, [device] = await lane_of(engine)
    first, second, third = ids(await store(engine, *(submission(device, str(n)) for n in range(3))))
    assert await next_up(engine, driver) == first
    assert (await withdraw(engine, second)).after == Status.CANCELLED
    assert await withdraw(engine, second) is None, "again: it is so already"
    with pytest.raises(ProblemError, match="attempt 1 is on its way"):
        await withdraw(engine, first)
    await tell(engine, first, K.TRANSMITTED)
    with pytest.raises(ProblemError, match="its answer decides"):
        await withdraw(engine, first)
    await tell(engine, first, K.FAILED, retryable=True, terms=LATER)
    assert await next_up(engine, driver) is None
    await withdraw(engine, first)
    assert await next_up(engine, driver) == third, "a withdrawn head frees its lane at once"
    await tell(engine, first, K.SUCCESS)
    assert await status_of(engine, first) == Status.CANCELLED, "what comes after the end is noted"
    with pytest.raises(ProblemError) as none:
        await withdraw(engine, "00000000-0000-4000-8000-000000000000")
    assert none.value.code == "COMMAND_UNKNOWN"
    await books_balance(engine)


async def test_a_cancel_and_a_claim_at_once_never_both_win(engine: AsyncEngine) -> None:
    driver, devices = await lane_of(engine, 30)
    every = ids(await store(engine, *(submission(device) for device in devices)))

    async def try_to(command_id: str) -> bool:
        try:
            return await withdraw(engine, command_id) is not None
        except ProblemError as error:
            if error.code != "TOO_LATE":
                raise
            return False

    claimed, *cancelled = await asyncio.gather(claims(engine, driver), *(try_to(each) for each in every))
    claimed += await claims(engine, driver)
    sent = {row["command_id"] for row in claimed}
    assert sent == {one for one, gone in zip(every, cancelled, strict=True) if not gone}
    await books_balance(engine)


# --------------------------------------------------------------------------------------------- bounds


async def test_a_full_lane_refuses_the_rest_and_no_other_lane(engine: AsyncEngine) -> None:
    driver, [device, other] = await lane_of(engine, 2, depth_limit=5)
    answers = await store(engine, *(submission(device, str(n)) for n in range(10)), submission(other))
    assert codes(answers) == [""] * 5 + ["LANE_FULL"] * 5 + [""]
    refused = answers[5]
    assert isinstance(refused, ProblemError)
    assert (refused.status, refused.headers) == (429, {"Retry-After": "1"})
    await books_balance(engine)
    await claims(engine, driver)
    assert codes(await store(engine, submission(device, "11"), submission(device, "12"))) == ["", "LANE_FULL"]
    await books_balance(engine)


async def test_the_bound_holds_with_any_number_of_submits_at_once_in_a_new_lane(engine: AsyncEngine) -> None:
    _, [device] = await lane_of(engine, depth_limit=7)
    await run(engine, "DELETE FROM lane WHERE lane_key = :k", k=f"device:{device}")
    door = intake(engine, "postgresql://unused@localhost/unused")
    answers = await asyncio.gather(*(door.store([submission(device, str(n))]) for n in range(20)))
    assert sorted(code for part in answers for code in codes(part)) == [""] * 7 + ["LANE_FULL"] * 13
    await books_balance(engine)


async def test_a_full_lane_may_give_up_its_oldest_safe_commands(engine: AsyncEngine) -> None:
    driver, [device] = await lane_of(engine, depth_limit=4, on_full="drop_oldest")
    unsafe, *rest = ids(
        await store(engine, submission(device, point=UNLOCK), *(submission(device, str(n)) for n in range(3)))
    )
    newer = ids(await store(engine, submission(device, "8"), submission(device, "9", point=UNLOCK)))
    assert await statuses(engine, [unsafe, *rest, *newer]) == ["PENDING", *["SUPERSEDED"] * 2, *["PENDING"] * 3]
    assert (await command(engine, rest[0])).error_code == "DROPPED"
    assert ids(await store(engine, submission(device, "7", point=UNLOCK)))
    assert ids(await store(engine, submission(device, "6", point=UNLOCK)))
    assert codes(await store(engine, submission(device, "5"))) == ["LANE_FULL"], "unsafe ones are never given up"
    assert await next_up(engine, driver) == unsafe
    await books_balance(engine)


async def test_one_group_larger_than_the_lane_leaves_its_last_ones(engine: AsyncEngine) -> None:
    _, [device] = await lane_of(engine, depth_limit=3, on_full="drop_oldest")
    every = ids(await store(engine, *(submission(device, str(n)) for n in range(10))))
    assert await statuses(engine, every) == ["SUPERSEDED"] * 7 + ["PENDING"] * 3
    await books_balance(engine)


async def test_the_backlog_of_a_driver_and_of_all_is_bounded(engine: AsyncEngine) -> None:
    driver, devices = await lane_of(engine, 20)
    await run(engine, "UPDATE driver SET waiting_limit = 12 WHERE name = :d", d=driver)
    door = intake(engine, "postgresql://unused@localhost/unused")
    answers = await asyncio.gather(*(door.store([submission(device)]) for device in devices))
    assert sorted(code for part in answers for code in codes(part)) == [""] * 12 + ["BACKLOG_FULL"] * 8
    assert len(await claims(engine, driver, most=5)) == 5
    more = await store(engine, *(submission(device, "2") for device in devices))
    assert codes(more).count("") == 5
    [total] = await rows(engine, "SELECT sum(depth) AS n FROM lane")
    _, [elsewhere] = await lane_of(engine)
    bounded = await store(engine, *(submission(elsewhere, str(n)) for n in range(5)), waiting_limit=total.n + 2)
    assert codes(bounded) == ["", "", *["BACKLOG_FULL"] * 3]


async def test_books_balance_after_a_thousand_random_acts(engine: AsyncEngine) -> None:
    """Submits of every kind, cancels, drops, skips, claims and results, several at once."""
    chance = random.Random(20261130)
    driver, devices = await lane_of(engine, 6, depth_limit=15)
    for device in devices[:3]:
        await run(engine, "UPDATE device SET on_full = 'drop_oldest', retry = 'relaxed' WHERE device_id = :d", d=device)
    door = intake(engine, "postgresql://unused@localhost/unused")
    known: list[str] = []

    async def act() -> None:
        dice = chance.random()
        device = chance.choice(devices)
        if dice < 0.5:
            merge = chance.choice([None, None, "latest", "reject_duplicate"])
            intent = chance.choice("ab") if merge or chance.random() < 0.5 else None
            given = {"merge": merge, "intent_key": intent, "priority": chance.choice([None, 0, 5])}
            point, purpose = chance.choice([LEVEL, LEVEL, UNLOCK]), chance.choice([None, "revoke"])
            each = [
                submission(device, str(n), point=point, purpose=purpose, **given) for n in range(chance.randint(1, 6))
            ]
            known.extend(one.command_id for one in each)
            await door.store(each)
        elif dice < 0.65 and known:
            await _unless_refused(withdraw(engine, chance.choice(known)))
        elif dice < 0.7:
            where = skip_head(engine, 1, f"device:{device}", SHIFT, grace=GRACE, ageing_s=60)
            await _unless_refused(where)
        else:
            for row in await claims(engine, driver, most=4):
                kind = chance.choice([K.SUCCESS, K.NOT_SENT, K.NOT_SENT, K.FAILED])
                await tell(engine, row["command_id"], kind, row["attempt"])

    for _ in range(250):
        await asyncio.gather(*(act() for _ in range(4)))
    await books_balance(engine)
    # the one in flight may come back for its next try after a submit has taken its place: it is not given up
    over = await rows(engine, "SELECT * FROM lane WHERE driver = :d AND depth > 15 + 1", d=driver)
    assert over == []
    gone = await rows(
        engine, "SELECT DISTINCT error_code FROM point_command WHERE driver = :d AND status = 'SUPERSEDED'", d=driver
    )
    assert {row.error_code for row in gone} == {"DROPPED", "REPLACED", "REVOKED", "OVERTAKEN"}
    dropped = await rows(
        engine,
        "SELECT 1 FROM point_command WHERE driver = :d AND error_code = 'DROPPED' AND retry_safety = 'unsafe'",
        d=driver,
    )
    assert dropped == []


async def _unless_refused(work: Any) -> None:
    try:
        await work
    except ProblemError as error:
        if error.code not in {"TOO_LATE", "COMMAND_UNKNOWN", "LANE_EMPTY", "LANE_IN_FLIGHT"}:
            raise


# ---------------------------------------------------------------------------------------------- holds


async def test_a_hold_on_a_busy_lane_survives_the_result_that_frees_it(engine: AsyncEngine) -> None:
    driver, [device] = await lane_of(engine)
    first, second = ids(await store(engine, submission(device, "1"), submission(device, "2")))
    assert await next_up(engine, driver) == first
    lane = f"device:{device}"
    await hold_lane(engine, 1, lane, SHIFT)
    await tell(engine, first, K.SUCCESS)
    await store(engine, submission(device, "3"))
    assert await next_up(engine, driver) is None
    with pytest.raises(ProblemError, match="held by shift already"):
        await hold_lane(engine, 1, lane, SHIFT)
    await release_lane(engine, 1, lane, SHIFT)
    assert await next_up(engine, driver) == second
    with pytest.raises(ProblemError, match="not held"):
        await release_lane(engine, 1, lane, SHIFT)
    acts = await rows(
        engine,
        "SELECT action, operator, why, before, after FROM operator_action WHERE subject = :s ORDER BY id",
        s=lane,
    )
    assert [(act.action, act.operator, act.why) for act in acts] == [
        ("lane.hold", "shift", "test"),
        ("lane.release", "shift", "test"),
    ]
    assert [act.after["operator_hold"] for act in acts] == ["shift", None]


async def test_a_skipped_head_waits_at_the_tail(engine: AsyncEngine) -> None:
    driver, [device] = await lane_of(engine)
    urgent, second, third = ids(
        await store(engine, submission(device, "1", priority=0), *(submission(device, str(n)) for n in (2, 3)))
    )
    lane = f"device:{device}"
    assert await next_up(engine, driver) == urgent
    with pytest.raises(ProblemError, match="on its way to the device"):
        await skip_head(engine, 1, lane, SHIFT, grace=GRACE, ageing_s=60)
    await tell(engine, urgent, K.NOT_SENT, terms=LATER)
    assert await next_up(engine, driver) is None
    assert (await skip_head(engine, 1, lane, SHIFT, grace=GRACE, ageing_s=60)).command_id == urgent
    await books_balance(engine)
    for expected in (second, third):
        assert await next_up(engine, driver) == expected
        await tell(engine, expected, K.SUCCESS)
    await _its_time_has_come(engine, urgent)
    assert await next_up(engine, driver) == urgent
    await tell(engine, urgent, K.SUCCESS, 2)
    with pytest.raises(ProblemError, match="nothing waits"):
        await skip_head(engine, 1, lane, SHIFT, grace=GRACE, ageing_s=60)


async def test_a_skipped_grant_doesnt_run_after_its_revocation(engine: AsyncEngine) -> None:
    driver, [device] = await lane_of(engine)
    [grant] = ids(await store(engine, submission(device, "1", intent_key="k", purpose="grant")))
    assert await next_up(engine, driver) == grant
    [revocation] = ids(await store(engine, submission(device, "0", intent_key="k", purpose="revoke")))
    await tell(engine, grant, K.NOT_SENT, terms=LATER)
    assert await status_of(engine, grant) == "RETRY_WAIT", "strict: it keeps its lane, so it would run before"
    skipped = await skip_head(engine, 1, f"device:{device}", SHIFT, grace=GRACE, ageing_s=60)
    assert [(change.after, change.error_code) for change in skipped.changes] == [("SUPERSEDED", "OVERTAKEN")]
    assert await next_up(engine, driver) == revocation
    await books_balance(engine)


async def test_a_skip_opens_a_lane_that_a_review_closed_and_the_review_stays(engine: AsyncEngine) -> None:
    driver, [device] = await lane_of(engine, review_policy="hold")
    doubtful, second = ids(await store(engine, *(submission(device, str(n), point=UNLOCK) for n in range(2))))
    assert await next_up(engine, driver) == doubtful
    await tell(engine, doubtful, K.STARTED)
    await absent(engine, doubtful)
    assert await next_up(engine, driver) is None
    skipped = await skip_head(engine, 1, f"device:{device}", SHIFT, grace=GRACE, ageing_s=60)
    assert (skipped.command_id, skipped.changes) == (doubtful, ())
    assert await status_of(engine, doubtful) == Status.MANUAL_REVIEW
    assert await next_up(engine, driver) == second
    await tell(engine, doubtful, K.SUCCESS)
    assert await status_of(engine, doubtful) == Status.SUCCESS
    [lane] = await rows(engine, "SELECT review_holds FROM lane WHERE lane_key = :k", k=f"device:{device}")
    assert lane.review_holds == 0


# ------------------------------------------------------------------------------------------- policies


async def test_the_most_specific_level_decides(engine: AsyncEngine) -> None:
    driver, [device] = await lane_of(engine)
    set_at = [
        ("UPDATE driver SET retry = 'relaxed', max_attempts = 7, gate = 'transport' WHERE name = :x", driver),
        ("UPDATE device SET max_attempts = 6 WHERE device_id = :x", device),
        ("UPDATE lane SET max_attempts = 5 WHERE lane_key = :x", f"device:{device}"),
        ("UPDATE point SET max_attempts = 4, gate = 'ack' WHERE device_id = :x AND point_id = 1", device),
    ]
    for attempts, (sql, subject) in zip((7, 6, 5, 4), set_at, strict=True):
        await run(engine, sql, x=subject)
        one, own = ids(await store(engine, submission(device), submission(device, max_attempts=1)))
        row = await command(engine, one)
        assert (row.max_attempts, row.retry) == (attempts, "relaxed")
        assert row.gate == ("transport" if attempts > 4 else "ack")
        assert (await command(engine, own)).max_attempts == 1
    [unsafe, said] = ids(
        await store(engine, submission(device, point=UNLOCK), submission(device, point=UNLOCK, gate="transport"))
    )
    gates = [(await command(engine, each)).gate for each in (unsafe, said)]
    assert gates == ["ack", "transport"], "an unsafe command waits for its answer unless it or its point says otherwise"


async def test_lanes_by_group_topic_and_for_all(engine: AsyncEngine) -> None:
    driver, [one, two, three] = await lane_of(engine, 3)
    await register(engine, [one], driver=driver, lane_by="group", lane_group="floor")
    await register(engine, [two], driver=driver, lane_by="topic", address={"topic": "floor/2"})
    await register(engine, [three], driver=driver, lane_by="global")
    found = await rows(engine, "SELECT lane_key FROM device WHERE driver = :d ORDER BY device_id", d=driver)
    assert [row.lane_key for row in found] == ["group:floor", "topic:floor/2", "global"]
    facts = await read_lane(engine, 1, "group:floor", ageing_s=60)
    assert [row["device_id"] for row in facts.terms] == [one]
