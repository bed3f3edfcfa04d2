"""Lanes and attempts on a real PostgreSQL: order, one in flight, books that balance, races."""

import asyncio
import random
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine

from laneway_center.intake import Accepted
from laneway_center.store.actions import Operator
from laneway_center.store.claims import ClaimTerms, confirm_sent
from laneway_center.store.due import take_due
from laneway_center.store.evidence import Item, JudgeTerms, apply
from laneway_center.store.instances import mark_listening, sweep_silent
from laneway_center.store.locked_rows import Subject
from laneway_center.store.operators import Again, resolve, send_again
from laneway_center.store.registry import LaneInUseError
from laneway_shared.judgement import Evidence, Policy
from laneway_shared.lifecycle import ResultKind, Status
from laneway_shared.problems import ProblemError
from support.lanes import AT_ONCE, about, claims, lane_of, status_of, tell
from support.stored import LEVEL, UNLOCK, beat, books_balance, ids, register, rows, run, store, submission

K = ResultKind
TERMS = ClaimTerms(by="test", window_ms=10_000, grace_ms=5_000, most=100)


async def test_a_lane_sends_one_at_a_time_in_the_order_of_submits(engine: AsyncEngine) -> None:
    driver, [device] = await lane_of(engine)
    submitted = ids(await store(engine, *(submission(device, str(n)) for n in range(5))))
    seen = []
    for _ in range(5):
        [row] = await claims(engine, driver)
        assert await claims(engine, driver) == [], "one in flight"
        seen.append(row["command_id"])
        await tell(engine, row["command_id"], K.SUCCESS)
        await books_balance(engine)
    assert seen == submitted


async def test_a_smaller_priority_goes_first_in_its_lane(engine: AsyncEngine) -> None:
    driver, [device] = await lane_of(engine)
    _, urgent = ids(await store(engine, submission(device, "1"), submission(device, "2", priority=0)))
    assert [row["command_id"] for row in await claims(engine, driver)] == [urgent]


async def test_dispatchers_never_claim_a_lane_twice(engine: AsyncEngine) -> None:
    driver, devices = await lane_of(engine, 40)
    await store(engine, *(submission(device, str(n)) for n in range(3) for device in devices))
    batches = await asyncio.gather(*(claims(engine, driver, most=7) for _ in range(8)))
    taken = [row["device_id"] for batch in batches for row in batch]
    assert len(taken) == len(set(taken)) == 40
    await books_balance(engine)


async def test_the_database_itself_refuses_a_second_command_in_flight(engine: AsyncEngine) -> None:
    driver, [device] = await lane_of(engine)
    _, second = ids(await store(engine, submission(device, "1"), submission(device, "2")))
    assert await claims(engine, driver)
    with pytest.raises(IntegrityError, match="uq_point_command_in_flight"):
        await run(
            engine,
            "UPDATE point_command SET status = 'SENT', attempt = 1, start_by = now(), quiet_at = now()"
            " WHERE command_id = :c",
            c=second,
        )


async def test_a_final_state_has_a_finish_time_and_no_other_state_has_one(engine: AsyncEngine) -> None:
    _, [device] = await lane_of(engine)
    [one] = ids(await store(engine, submission(device)))
    for change in ("status = 'SUCCESS'", "finished_at = now()"):
        with pytest.raises(DBAPIError, match="finished_when_final"):
            await run(engine, f"UPDATE point_command SET {change} WHERE command_id = :c", c=one)


async def test_capacity_bounds_what_is_on_its_way(engine: AsyncEngine) -> None:
    driver, devices = await lane_of(engine, 10)
    await store(engine, *(submission(device) for device in devices))
    first = await claims(engine, driver, room=4)
    assert len(first) == 4
    assert await claims(engine, driver, room=4) == []
    await tell(engine, first[0]["command_id"], K.SUCCESS)
    assert len(await claims(engine, driver, room=4)) == 1


async def test_the_same_id_twenty_times_at_once_is_one_command(engine: AsyncEngine) -> None:
    _, [device] = await lane_of(engine)
    same = submission(device)
    answers = [answer for [answer] in await asyncio.gather(*(store(engine, same) for _ in range(20)))]
    assert set(ids(answers)) == {same.command_id}
    assert sum(answer.created for answer in answers if isinstance(answer, Accepted)) == 1
    await books_balance(engine)


async def test_the_same_id_in_one_group_is_one_command(engine: AsyncEngine) -> None:
    _, [device] = await lane_of(engine)
    same = submission(device)
    other = submission(device, "2", command_id=same.command_id)
    first, again, reused = await store(engine, same, same, other)
    assert isinstance(first, Accepted)
    assert first.created
    assert isinstance(again, Accepted)
    assert not again.created
    assert isinstance(reused, ProblemError)
    assert reused.code == "COMMAND_ID_REUSED"
    await books_balance(engine)


async def test_submits_of_many_at_once_leave_no_gap_and_no_double(engine: AsyncEngine) -> None:
    _, devices = await lane_of(engine, 5)
    rng = random.Random(7)
    groups = [[submission(rng.choice(devices), str(n)) for n in range(20)] for _ in range(12)]
    await asyncio.gather(*(store(engine, *group) for group in groups))
    uneven = await rows(
        engine,
        "SELECT lane_id FROM point_command WHERE device_id = ANY(:d) GROUP BY lane_id"
        " HAVING count(DISTINCT seq) <> count(*) OR max(seq) <> count(*)",
        d=devices,
    )
    assert uneven == []
    await books_balance(engine)


async def test_an_answer_before_the_confirm_counts_and_the_confirm_changes_nothing(engine: AsyncEngine) -> None:
    driver, [device] = await lane_of(engine)
    await store(engine, submission(device))
    [row] = await claims(engine, driver)
    await tell(engine, row["command_id"], K.SUCCESS, response_value="1")
    await confirm_sent(engine, [(row["id"], row["attempt"])])
    assert await status_of(engine, row["command_id"]) == "SUCCESS"


async def test_confirms_and_results_of_the_same_rows_from_many_tasks(engine: AsyncEngine) -> None:
    driver, devices = await lane_of(engine, 60)
    await store(engine, *(submission(device) for device in devices))
    claimed = await claims(engine, driver)
    rng = random.Random(3)

    async def confirm() -> None:
        await confirm_sent(engine, [(r["id"], 1) for r in rng.sample(claimed, 30)])

    async def answer(part: list[Any]) -> None:
        items = [about(r["command_id"], Evidence(kind=K.SUCCESS, attempt=1)) for r in part]
        await apply(engine, items, AT_ONCE)

    shuffled = [rng.sample(claimed, len(claimed)) for _ in range(4)]
    await asyncio.gather(*(answer(part) for part in shuffled), *(confirm() for _ in range(8)))
    left = await rows(
        engine, "SELECT status FROM point_command WHERE device_id = ANY(:d) AND status <> 'SUCCESS'", d=devices
    )
    assert left == []
    await books_balance(engine)


async def test_strict_holds_the_lane_through_the_pause(engine: AsyncEngine) -> None:
    driver, [device] = await lane_of(engine)
    first, second = ids(await store(engine, submission(device, "1"), submission(device, "2", priority=0)))
    [row] = await claims(engine, driver)
    assert row["command_id"] == second
    slow = JudgeTerms(grace=timedelta(seconds=5), policy=Policy(base=timedelta(seconds=30)), chance=lambda: 0.0)
    refusal = Evidence(kind=K.NOT_SENT, attempt=1)
    await apply(engine, [about(second, refusal)], slow)
    assert await claims(engine, driver) == []
    await books_balance(engine)
    await run(engine, "UPDATE point_command SET next_visible_at = now() WHERE command_id = :c", c=second)
    await run(engine, "UPDATE lane SET ready_at = now() WHERE lane_key = :k", k=f"device:{device}")
    [again] = await claims(engine, driver)
    assert (again["command_id"], again["attempt"]) == (second, 2)
    await tell(engine, second, K.SUCCESS, 2)
    assert [r["command_id"] for r in await claims(engine, driver)] == [first]


async def test_relaxed_lets_the_others_go_first(engine: AsyncEngine) -> None:
    driver, [device] = await lane_of(engine, retry="relaxed")
    first, second = ids(await store(engine, submission(device, "1"), submission(device, "2")))
    await claims(engine, driver)
    await tell(engine, first, K.NOT_SENT)
    await books_balance(engine)
    assert [r["command_id"] for r in await claims(engine, driver)] == [second]
    await tell(engine, second, K.SUCCESS)
    assert [r["command_id"] for r in await claims(engine, driver)] == [first]


async def test_attempts_used_up_is_dead_and_the_lane_goes_on(engine: AsyncEngine) -> None:
    driver, [device] = await lane_of(engine)
    first, second = ids(await store(engine, submission(device, "1"), submission(device, "2")))
    for attempt in (1, 2, 3):
        [row] = await claims(engine, driver)
        assert row["attempt"] == attempt
        await tell(engine, first, K.NOT_SENT, attempt)
    assert await status_of(engine, first) == "DEAD"
    assert [r["command_id"] for r in await claims(engine, driver)] == [second]
    await books_balance(engine)


async def test_a_command_that_never_left_expires_and_leaves_the_lane(engine: AsyncEngine) -> None:
    driver, [device] = await lane_of(engine)
    old, young = ids(await store(engine, submission(device, "1"), submission(device, "2")))
    await run(engine, "UPDATE point_command SET expire_at = now(), due_at = now() WHERE command_id = :c", c=old)
    assert [r["command_id"] for r in await claims(engine, driver)] == [young], "the expired head isn't sent"
    due = [each for each in await take_due(engine, most=100) if each.command_id == old]
    assert [each.attempt for each in due] == [0]
    items = [about(old, Evidence(kind=K.DUE, attempt=0, at=each.seen_at)) for each in due]
    await apply(engine, items, AT_ONCE)
    assert await status_of(engine, old) == "EXPIRED"
    await books_balance(engine)


async def test_an_absence_check_is_taken_by_one_scheduler(engine: AsyncEngine) -> None:
    driver, devices = await lane_of(engine, 20)
    await store(engine, *(submission(device, point=UNLOCK) for device in devices))
    assert len(await claims(engine, driver)) == 20
    await run(engine, "UPDATE point_command SET due_at = now() WHERE device_id = ANY(:d)", d=devices)
    taken = await asyncio.gather(*(take_due(engine, most=7) for _ in range(6)))
    mine = [each.command_id for part in taken for each in part]
    assert len(mine) == len(set(mine)) == 20


async def test_a_review_releases_the_lane_or_holds_it_as_configured(engine: AsyncEngine) -> None:
    for policy, goes_on in (("release", True), ("hold", False)):
        driver, [device] = await lane_of(engine, review_policy=policy)
        doubtful, behind = ids(
            await store(engine, submission(device, point=UNLOCK), submission(device, "2", point=UNLOCK))
        )
        await claims(engine, driver)
        await tell(engine, doubtful, K.STARTED)
        await run(
            engine,
            "UPDATE point_command SET start_by = now() - interval '60 s', quiet_at = now() - interval '40 s'"
            " WHERE command_id = :c",
            c=doubtful,
        )
        seen = (await rows(engine, "SELECT clock_timestamp() AS now"))[0].now
        await tell(engine, doubtful, K.DUE, 1, at=seen)
        assert await status_of(engine, doubtful) == "MANUAL_REVIEW"
        assert [r["command_id"] for r in await claims(engine, driver)] == ([behind] if goes_on else [])
        await tell(engine, doubtful, K.SUCCESS)
        assert await status_of(engine, doubtful) == "SUCCESS"
        if not goes_on:
            assert [r["command_id"] for r in await claims(engine, driver)] == [behind]


async def test_a_device_that_echoes_no_id_is_matched_by_its_lane(engine: AsyncEngine) -> None:
    driver, [device, other] = await lane_of(engine, 2)
    await store(engine, submission(device), submission(other))
    await claims(engine, driver)
    answer = Item(subject=Subject(device_sn=f"SN{device}"), evidence=Evidence(kind=K.SUCCESS))
    assert (await apply(engine, [answer], AT_ONCE)).orphans == (0,), "not handed over yet"
    [command] = await rows(engine, "SELECT command_id::text AS id FROM point_command WHERE device_id = :d", d=device)
    await tell(engine, command.id, K.TRANSMITTED)
    assert (await apply(engine, [answer], AT_ONCE)).orphans == ()
    assert (await apply(engine, [answer], AT_ONCE)).orphans == (0,), "nothing is in flight any more"
    done = await rows(
        engine, "SELECT device_id FROM point_command WHERE status = 'SUCCESS' AND device_id >= :d", d=device
    )
    assert [row.device_id for row in done] == [device]


async def test_evidence_about_nobody_is_named_and_the_rest_is_applied(engine: AsyncEngine) -> None:
    driver, [device] = await lane_of(engine)
    [known] = ids(await store(engine, submission(device)))
    await claims(engine, driver)
    success = Evidence(kind=K.SUCCESS, attempt=1)
    stranger = about("00000000-0000-4000-8000-000000000000", success)
    foreign = Item(subject=Subject(tenant_id=2, command_id=known), evidence=success)
    applied = await apply(engine, [stranger, foreign, about(known, success)], AT_ONCE)
    assert applied.orphans == (0, 1)
    assert await status_of(engine, known) == "SUCCESS"


async def test_a_silent_instance_is_offline_only_while_somebody_listens(engine: AsyncEngine) -> None:
    driver, [device] = await lane_of(engine)
    silence = timedelta(seconds=15)
    quiet = "UPDATE driver_instance SET last_seen = now() - interval '1 min' WHERE service = :s"
    await run(engine, quiet, s=driver)
    await run(engine, "UPDATE heartbeat_watch SET listening_at = now() - interval '1 min'")
    await mark_listening(engine)  # the center was deaf and hears again
    assert (driver, "i1") not in await sweep_silent(engine, silence)
    await run(engine, "UPDATE heartbeat_watch SET listening_since = now() - interval '16 s'")
    assert (driver, "i1") in await sweep_silent(engine, silence)
    [answer] = await store(engine, submission(device))
    assert isinstance(answer, ProblemError)
    assert answer.code == "DRIVER_OFFLINE"
    await beat(engine, driver)
    assert ids(await store(engine, submission(device)))


async def test_each_of_a_group_gets_its_own_answer_whatever_stands_beside_it(engine: AsyncEngine) -> None:
    driver, [device] = await lane_of(engine)
    known, new, unfit, made_here = (submission(device), submission(device, "2"), submission(device, "1000"),
                                    submission(device, "3", id_made_here=True))  # fmt: skip
    await store(engine, known)
    answers = await store(
        engine,
        replace(new, body_hash="00"), unfit, known, replace(known, body_hash="00"), new, unfit, replace(known),
        replace(unfit, body_hash="00"), made_here, replace(new, tenant_id=2), replace(new, body_hash="00"),
    )  # fmt: skip
    said = [(a.created if isinstance(a, Accepted) else a.code) for a in answers]
    assert said == [
        True, "VALUE_REFUSED", False, "COMMAND_ID_REUSED", "COMMAND_ID_REUSED", "VALUE_REFUSED", False,
        "COMMAND_ID_REUSED", True, "DEVICE_UNKNOWN", False,
    ]  # fmt: skip
    assert len(await claims(engine, driver)) == 1
    await books_balance(engine)


async def test_a_known_command_is_shown_also_when_its_driver_is_offline(engine: AsyncEngine) -> None:
    driver, [device] = await lane_of(engine)
    same = submission(device)
    await store(engine, same)
    await beat(engine, driver, state="stopping")
    [again] = await store(engine, same)
    assert isinstance(again, Accepted)
    [other] = await store(engine, submission(device, "2", command_id=same.command_id))
    assert isinstance(other, ProblemError)
    assert other.code == "COMMAND_ID_REUSED", "decided before anything else"


async def dead(engine: AsyncEngine, *, point: int = LEVEL) -> tuple[str, str]:
    driver, [device] = await lane_of(engine)
    [one] = ids(await store(engine, submission(device, point=point, max_attempts=1)))
    await claims(engine, driver)
    await tell(engine, one, K.NOT_SENT)
    assert await status_of(engine, one) == "DEAD"
    return driver, one


AGAIN = Again(expire_in=timedelta(minutes=1), grace=timedelta(seconds=5))
ME = Operator(name="kim", why="the door is repaired")


async def test_a_replay_is_a_new_attempt_at_the_tail_with_a_new_deadline(engine: AsyncEngine) -> None:
    driver, one = await dead(engine)
    subject = Subject(tenant_id=1, command_id=one)
    again = await send_again(engine, subject, ME, AGAIN)
    assert (again.command["status"], again.next_attempt, again.seq) == ("PENDING", 2, again.previous_seq + 1)
    await books_balance(engine)
    with pytest.raises(ProblemError, match="it is PENDING"):
        await send_again(engine, subject, ME, AGAIN)
    [row] = await claims(engine, driver)
    assert (row["command_id"], row["attempt"]) == (one, 2)
    await tell(engine, one, K.SUCCESS, 1)
    assert await status_of(engine, one) == "DISPATCHING", "the first attempt's answer is late evidence"
    await tell(engine, one, K.SUCCESS, 2)
    assert await status_of(engine, one) == "SUCCESS"
    with pytest.raises(ProblemError, match="it is SUCCESS"):
        await send_again(engine, subject, ME, AGAIN)
    [event] = await rows(engine, "SELECT detail FROM point_command_event e JOIN point_command c ON c.id = e.command_pk"
                         " WHERE kind = 'REPLAYED' AND command_id = :c", c=one)  # fmt: skip
    assert event.detail == {"by": "kim", "why": "the door is repaired"}
    await books_balance(engine)


async def test_an_unsafe_command_that_expired_needs_force(engine: AsyncEngine) -> None:
    driver, [device] = await lane_of(engine)
    [one] = ids(await store(engine, submission(device, point=UNLOCK)))
    subject = Subject(tenant_id=1, command_id=one)
    await run(engine, "UPDATE point_command SET expire_at = now() WHERE command_id = :c", c=one)
    seen = (await rows(engine, "SELECT clock_timestamp() AS now"))[0].now
    await tell(engine, one, K.DUE, 0, at=seen)
    assert await status_of(engine, one) == "EXPIRED"
    with pytest.raises(ProblemError) as refused:
        await send_again(engine, subject, ME, AGAIN)
    assert refused.value.code == "FORCE_NEEDED"
    await send_again(engine, subject, ME, replace(AGAIN, force=True))
    assert [r["command_id"] for r in await claims(engine, driver)] == [one]


async def test_of_two_operators_the_second_is_told(engine: AsyncEngine) -> None:
    driver, [device] = await lane_of(engine, review_policy="hold")
    [one] = ids(await store(engine, submission(device, point=UNLOCK)))
    subject = Subject(tenant_id=1, command_id=one)
    await claims(engine, driver)
    await tell(engine, one, K.STARTED)
    await run(engine, "UPDATE point_command SET quiet_at = start_by - interval '1 min' WHERE command_id = :c", c=one)
    seen = (await rows(engine, "SELECT clock_timestamp() AS now"))[0].now
    await tell(engine, one, K.DUE, 1, at=seen)
    assert await status_of(engine, one) == "MANUAL_REVIEW"
    decisions = await asyncio.gather(
        resolve(engine, subject, ME, Status.SUCCESS, grace=timedelta(seconds=5)),
        resolve(engine, subject, ME, Status.FAILED, grace=timedelta(seconds=5)),
        send_again(engine, subject, ME, AGAIN),
        return_exceptions=True,
    )
    assert sum(isinstance(each, ProblemError) for each in decisions) == 2
    await books_balance(engine)


async def test_the_room_holds_with_any_number_of_dispatchers_and_when_it_shrinks(engine: AsyncEngine) -> None:
    driver, devices = await lane_of(engine, 40)
    await store(engine, *(submission(device) for device in devices))
    batches = await asyncio.gather(*(claims(engine, driver, room=10) for _ in range(6)))
    assert sum(map(len, batches)) == 10
    assert await claims(engine, driver, room=3) == [], "less room than is on its way"


async def test_an_answer_needs_no_tenant_but_must_come_from_the_commands_device(engine: AsyncEngine) -> None:
    driver, [device, other] = await lane_of(engine, 2)
    [mine] = ids(await store(engine, submission(device)))
    await claims(engine, driver)
    success = Evidence(kind=K.SUCCESS, attempt=1)
    foreign = Item(subject=Subject(command_id=mine, device_sn=f"SN{other}"), evidence=success)
    assert (await apply(engine, [foreign], AT_ONCE)).orphans == (0,)
    own = Item(subject=Subject(command_id=mine, device_sn=f"SN{device}"), evidence=success)
    assert (await apply(engine, [own], AT_ONCE)).orphans == ()
    assert await status_of(engine, mine) == "SUCCESS"


async def test_a_review_gives_back_the_hold_it_took_whatever_the_policy_is_by_then(engine: AsyncEngine) -> None:
    driver, [device] = await lane_of(engine, review_policy="hold")
    [doubtful] = ids(await store(engine, submission(device, point=UNLOCK)))
    await claims(engine, driver)
    await tell(engine, doubtful, K.STARTED)
    past = "UPDATE point_command SET quiet_at = start_by - interval '1 min' WHERE command_id = :c"
    await run(engine, past, c=doubtful)
    seen = (await rows(engine, "SELECT clock_timestamp() AS now"))[0].now
    await tell(engine, doubtful, K.DUE, 1, at=seen)
    await register(engine, [device], driver=driver, review_policy="release")
    [behind] = ids(await store(engine, submission(device, "2")))
    assert await claims(engine, driver) == [], "still held"
    await tell(engine, doubtful, K.SUCCESS)
    assert [r["command_id"] for r in await claims(engine, driver)] == [behind]


async def test_a_device_that_moves_takes_its_waiting_commands_along(engine: AsyncEngine) -> None:
    old, [device] = await lane_of(engine)
    [one] = ids(await store(engine, submission(device)))
    new = f"{old}-new"
    await register(engine, [device], driver=new)
    assert await claims(engine, old) == []
    assert [r["command_id"] for r in await claims(engine, new)] == [one]


async def test_a_lane_of_two_drivers_sends_each_command_to_its_own(engine: AsyncEngine) -> None:
    first, [device] = await lane_of(engine)
    second, [other] = await lane_of(engine)
    for driver, one in ((first, device), (second, other)):
        await register(engine, [one], driver=driver, lane_key=f"group:{device}")
    sent = ids(await store(engine, submission(device), submission(other), submission(device, "3")))
    seen = []
    for _ in range(20):
        for driver in (first, second):
            for row in await claims(engine, driver):
                seen.append((driver, row["command_id"]))
                await tell(engine, row["command_id"], K.SUCCESS)
        await run(
            engine, "UPDATE lane SET ready_at = now() WHERE lane_key = :k AND state = 'ready'", k=f"group:{device}"
        )
    assert seen == [(first, sent[0]), (second, sent[1]), (first, sent[2])]


async def test_a_device_cant_leave_a_lane_in_which_it_has_open_commands(engine: AsyncEngine) -> None:
    driver, [device] = await lane_of(engine)
    await store(engine, submission(device))
    with pytest.raises(LaneInUseError):
        await register(engine, [device], driver=driver, lane_key="elsewhere")


async def test_a_replay_in_a_relaxed_lane_doesnt_wait_for_anothers_pause(engine: AsyncEngine) -> None:
    driver, [device] = await lane_of(engine, retry="relaxed")
    pausing, gone = ids(await store(engine, submission(device, "1"), submission(device, "2", max_attempts=1)))
    slow = JudgeTerms(grace=timedelta(seconds=5), policy=Policy(base=timedelta(seconds=600)), chance=lambda: 0.0)
    for command_id in (pausing, gone):
        await claims(engine, driver)
        await run(
            engine, "UPDATE point_command SET expire_at = now() + interval '1 h' WHERE command_id = :c", c=command_id
        )
        await apply(engine, [about(command_id, Evidence(kind=K.NOT_SENT, attempt=1))], slow)
    assert await status_of(engine, gone) == "DEAD"
    assert await claims(engine, driver) == []
    await run(engine, "UPDATE lane SET ready_at = now() + interval '10 min' WHERE lane_key = :k", k=f"device:{device}")
    await send_again(engine, Subject(tenant_id=1, command_id=gone), ME, AGAIN)
    assert [r["command_id"] for r in await claims(engine, driver)] == [gone]


async def test_submits_and_results_in_lanes_made_in_another_order_than_their_keys(engine: AsyncEngine) -> None:
    driver, devices = await lane_of(engine, 12)
    for device in reversed(devices):
        await store(engine, submission(device))
    claimed = await claims(engine, driver)
    assert len(claimed) == 12
    before = (await rows(engine, "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"))[0][0]

    async def submit(seed: int) -> None:
        for _ in range(15):
            await store(engine, *(submission(d) for d in random.Random(seed).sample(devices, 12)))

    async def answer(seed: int) -> None:
        for _ in range(15):
            items = [about(r["command_id"], Evidence(kind=K.IN_PROGRESS, attempt=1)) for r in claimed]
            random.Random(seed).shuffle(items)
            await apply(engine, items, AT_ONCE)

    await asyncio.gather(submit(1), submit(2), answer(3), answer(4))
    after = (await rows(engine, "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"))[0][0]
    assert after == before
    await books_balance(engine)
