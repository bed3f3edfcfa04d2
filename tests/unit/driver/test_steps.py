"""The order of the driver's steps: one test per rule, each breaks when the rule is left out."""

import asyncio
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from laneway_driver.port import Accepted, Call, Done, NotSent, Outcome, Refused, Transmitted, Unknown
from laneway_shared import broker, failpoints
from laneway_shared.lifecycle import ResultKind
from laneway_shared.messages import CommandMessage, Target
from unit.driver.stand_ins import COMMAND_ID, NOW, TOPOLOGY, Rig, command, read_command, until


def hold(rig: Rig) -> asyncio.Event:
    """Make devices wait for an event before they answer."""
    go = asyncio.Event()

    async def waits(_target: Target, value: str | None, _call: Call) -> Outcome:
        await go.wait()
        return Done(value)

    rig.adapter.behave = waits
    return go


def unconfirmed(kind: str, outcome: broker.Outcome) -> Callable[[broker.Outgoing], broker.Outcome]:
    return lambda message: outcome if f'"status":"{kind}"'.encode() in message.body else broker.Outcome.CONFIRMED


async def test_an_unsafe_write_announces_itself_calls_and_answers() -> None:
    async with Rig().running() as rig:
        result = await rig.answer(command())
        assert rig.publisher.kinds == ["STARTED", "SUCCESS"]
        assert (result.command_id, result.attempt, result.response_value) == (COMMAND_ID, 1, "1")
        assert (result.instance, result.finished_at) == ("virtual-1", NOW)
        [(target, value, call)] = rig.adapter.calls
        assert (target.device_sn, value, call.start_by) == ("A100", "1", NOW + timedelta(seconds=10))


async def test_a_safe_write_needs_no_announcement() -> None:
    async with Rig().running() as rig:
        await rig.answer(command(retrySafety="safe"))
        assert rig.publisher.kinds == ["SUCCESS"]


async def test_a_read_returns_the_value() -> None:
    async with Rig().running() as rig:

        async def reads(_target: Target, _value: str | None, _call: Call) -> Outcome:
            return Done("21.5")

        rig.adapter.behave = reads
        result = await rig.answer(read_command())
        assert (result.status, result.response_value) == (ResultKind.SUCCESS, "21.5")


async def test_a_redelivered_write_never_seen_here_is_not_run() -> None:
    async with Rig().running() as rig:
        assert (await rig.answer(command(), redelivered=True)).status is ResultKind.REDELIVERED
        assert rig.adapter.calls == []


@pytest.mark.parametrize(
    "changes",
    [
        {"startBy": NOW - timedelta(seconds=1)},
        {"expireAt": NOW - timedelta(seconds=1)},
        {"payload": {"kind": "Write", "deviceId": 1, "pointId": 2, "value": "9"}},
        {"laneToken": 1},
    ],
    ids=["late", "expired", "invalid", "stale"],
)
async def test_redelivered_is_looked_at_before_anything_else(changes: dict[str, Any]) -> None:
    async with Rig().running() as rig:
        await rig.answer(read_command())  # the clock and the lane's token are known
        assert (await rig.answer(command(attempt=2, **changes), redelivered=True)).status is ResultKind.REDELIVERED


async def test_redelivered_is_looked_at_before_a_drain() -> None:
    async with Rig().running() as rig:
        rig.executor.draining = True
        assert (await rig.answer(command(), redelivered=True)).status is ResultKind.REDELIVERED


async def test_the_copy_of_a_read_never_says_that_the_device_was_not_called() -> None:
    async with Rig().running() as rig:
        rig.monotonic += 10.1
        assert (await rig.answer(read_command(), redelivered=True)).status is ResultKind.REDELIVERED
    async with Rig().running() as rig:
        rig.executor.draining = True
        assert (await rig.answer(read_command(), redelivered=True)).status is ResultKind.REDELIVERED
        assert (await rig.answer(read_command(attempt=2))).status is ResultKind.RELEASED
    async with Rig().running() as rig:

        async def away(_target: Target, _value: str | None, _call: Call) -> Outcome:
            return NotSent("AWAY", "away")

        rig.adapter.behave = away
        assert (await rig.answer(read_command(), redelivered=True)).status is ResultKind.REDELIVERED
        assert (await rig.answer(read_command(attempt=2))).status is ResultKind.NOT_SENT


async def test_a_redelivered_read_is_run_again() -> None:
    async with Rig().running() as rig:
        await rig.answer(command())  # the time is known
        assert (await rig.answer(read_command(attempt=2), redelivered=True)).status is ResultKind.SUCCESS


@pytest.mark.parametrize("make", [command, read_command], ids=["write", "read"])
async def test_what_was_held_back_is_not_run_by_a_driver_that_has_seen_nothing_else(
    make: Callable[..., CommandMessage],
) -> None:
    """A frozen process had it in its socket: it can't tell that from a fresh one and a wall clock that is off."""
    async with Rig().running() as rig:
        held = {"publishedAt": NOW - timedelta(seconds=12), "startBy": NOW - timedelta(seconds=2)}
        result = await rig.answer(make(**held))
        assert (result.status, result.error_code) == (ResultKind.EXPIRED, "CLOCK_UNSETTLED")
        copy = await rig.answer(make(attempt=2, **held), redelivered=True)
        assert copy.status is ResultKind.REDELIVERED
        assert rig.adapter.calls == []


async def test_the_call_comes_after_the_confirm_of_started() -> None:
    async with Rig().running() as rig:
        rig.publisher.gate.clear()
        delivery = rig.deliver(command())
        await until(lambda: rig.commands.in_flight)
        await asyncio.sleep(0.02)
        assert rig.adapter.calls == []
        rig.publisher.gate.set()
        await until(lambda: delivery.answered)
        assert len(rig.adapter.calls) == 1


@pytest.mark.parametrize("outcome", [o for o in broker.Outcome if o is not broker.Outcome.CONFIRMED])
async def test_no_call_without_the_confirm_of_started(outcome: broker.Outcome) -> None:
    async with Rig().running() as rig:
        rig.publisher.outcome = unconfirmed("STARTED", outcome)
        result = await rig.answer(command())
        assert (result.status, result.error_code) == (ResultKind.NOT_SENT, "STARTED_UNCONFIRMED")
        assert rig.adapter.calls == []
        assert rig.publisher.kinds == ["STARTED", "NOT_SENT"]  # announced once, never again


@pytest.mark.parametrize(
    ("changes", "passes", "code"),
    [({}, 10.1, "START_WINDOW"), ({"expireAt": NOW + timedelta(seconds=3)}, 3.1, "DEADLINE")],
)
@pytest.mark.parametrize("safety", ["safe", "unsafe"])
async def test_late_after_the_device_lock_is_not_called(
    changes: dict[str, Any], passes: float, code: str, safety: str
) -> None:
    async with Rig().running() as rig:
        go = hold(rig)
        rig.deliver(read_command(attempt=1))
        await until(lambda: rig.adapter.calls)
        delivery = rig.deliver(command(attempt=2, retrySafety=safety, **changes))
        await until(lambda: rig.commands.in_flight == 2)
        rig.monotonic += passes
        go.set()
        await until(lambda: delivery.answered)
        result = rig.publisher.results[-1]
        assert (result.status, result.error_code) == (ResultKind.EXPIRED, code)
        assert len(rig.adapter.calls) == 1
        assert "STARTED" not in rig.publisher.kinds


@pytest.mark.parametrize(
    ("changes", "begins", "over"),
    [
        ({"startBy": NOW + timedelta(seconds=0.05)}, False, False),
        ({"callTimeout": 0.05}, True, True),
        ({}, True, False),
    ],
)
async def test_a_process_that_stands_still_right_before_the_call_loses_that_time(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], begins: bool, over: bool
) -> None:
    monkeypatch.setattr(failpoints, "hit", lambda name: time.sleep(0.1) if name == "driver.calling" else None)
    seen: list[tuple[NotSent | None, bool]] = []

    async def looks(_target: Target, value: str | None, call: Call) -> Outcome:
        seen.append((call.too_late(), asyncio.get_running_loop().time() >= call.deadline))
        return Done(value)

    async with Rig().running() as rig:
        rig.adapter.behave = looks
        await rig.answer(command(**changes))
    assert [(late is None, late_for_good) for late, late_for_good in seen] == [(begins, over)]


async def test_late_after_the_confirm_of_started_is_not_called() -> None:
    async with Rig().running() as rig:

        def slow(message: broker.Outgoing) -> broker.Outcome:
            if b"STARTED" in message.body:
                rig.monotonic += 10.1
            return broker.Outcome.CONFIRMED

        rig.publisher.outcome = slow
        assert (await rig.answer(command())).status is ResultKind.EXPIRED
        assert rig.adapter.calls == []


async def test_one_call_per_device_at_a_time_while_others_go_on() -> None:
    async with Rig().running() as rig:
        go = hold(rig)
        rig.deliver(read_command(attempt=1))
        rig.deliver(read_command(attempt=2))
        rig.deliver(read_command(attempt=3, target={"deviceSn": "B200", "point": "lock"}, laneKey="device:2"))
        await until(lambda: rig.adapter.running == 2)
        assert {target.device_sn for target, _, _ in rig.adapter.calls} == {"A100", "B200"}
        go.set()
        await until(lambda: len(rig.adapter.calls) == 3)
        assert rig.adapter.most_running == 2


async def test_concurrency_is_bounded() -> None:
    async with Rig(capacity=2).running() as rig:
        go = hold(rig)
        for number in range(4):
            target = {"deviceSn": f"D{number}", "point": "p"}
            rig.deliver(read_command(attempt=number + 1, target=target, laneKey=f"device:{number}"))
        await until(lambda: rig.adapter.running == 2)
        go.set()
        await until(lambda: len(rig.adapter.calls) == 4)
        assert rig.adapter.most_running == 2


async def test_an_older_lane_token_is_stale() -> None:
    async with Rig().running() as rig:
        await rig.answer(read_command(attempt=1, laneToken=7))
        assert (await rig.answer(command(attempt=2, laneToken=6))).status is ResultKind.STALE
        assert len(rig.adapter.calls) == 1
        assert (await rig.answer(command(attempt=3, laneToken=7))).status is ResultKind.SUCCESS


async def test_a_duplicate_of_a_running_attempt_is_told_and_not_run() -> None:
    async with Rig().running() as rig:
        go = hold(rig)
        first = rig.deliver(command())
        await until(lambda: rig.adapter.calls)
        assert (await rig.answer(command(), redelivered=True)).status is ResultKind.DUPLICATE
        go.set()
        await until(lambda: first.answered)
        assert rig.publisher.kinds == ["STARTED", "DUPLICATE", "SUCCESS"]
        assert len(rig.adapter.calls) == 1


async def test_a_duplicate_of_an_answered_attempt_gets_the_same_answer() -> None:
    async with Rig().running() as rig:
        first = await rig.answer(command())
        rig.monotonic += 200
        assert await rig.answer(command(), redelivered=True) == first
        assert len(rig.adapter.calls) == 1


async def test_a_value_out_of_bounds_is_refused_without_a_call() -> None:
    async with Rig().running() as rig:
        result = await rig.answer(command(payload={"kind": "Write", "deviceId": 1, "pointId": 2, "value": "2"}))
        assert (result.status, result.error_code, result.retryable) == (ResultKind.FAILED, "VALIDATION", False)
        assert result.error_message == "'2' is more than 1"
        assert rig.adapter.calls == []


async def test_connection_lost_before_the_start_drops_the_attempt() -> None:
    async with Rig().running() as rig:
        go = hold(rig)
        rig.deliver(read_command(attempt=1))
        await until(lambda: rig.adapter.calls)
        waiting = rig.deliver(command(attempt=2))
        await until(lambda: rig.commands.in_flight == 2)
        waiting.lost = True
        go.set()
        await until(lambda: not rig.commands.in_flight)
        assert len(rig.adapter.calls) == 1
        assert [result.attempt for result in rig.publisher.results] == [1]
        assert (await rig.answer(command(attempt=2), redelivered=True)).status is ResultKind.REDELIVERED


async def test_a_copy_that_comes_while_the_lost_one_still_waits_counts_as_never_seen() -> None:
    async with Rig().running() as rig:
        go = hold(rig)
        rig.deliver(read_command(attempt=1))
        await until(lambda: rig.adapter.calls)
        waiting = rig.deliver(read_command(attempt=2))
        await until(lambda: rig.commands.in_flight == 2)
        waiting.lost = True
        copy = rig.deliver(read_command(attempt=2), redelivered=True)
        go.set()
        await until(lambda: copy.answered)
        assert [call.attempt for _, _, call in rig.adapter.calls] == [1, 2]
        assert rig.publisher.kinds == ["SUCCESS", "SUCCESS"]


async def test_connection_lost_after_the_start_still_answers() -> None:
    async with Rig().running() as rig:
        go = hold(rig)
        delivery = rig.deliver(command())
        await until(lambda: rig.adapter.calls)
        delivery.lost = True
        go.set()
        await until(lambda: "SUCCESS" in rig.publisher.kinds)
        assert not delivery.acked
        assert (await rig.answer(command(), redelivered=True)).status is ResultKind.SUCCESS
        assert len(rig.adapter.calls) == 1


async def test_connection_lost_during_the_announcement_is_lost_after_the_start() -> None:
    async with Rig().running() as rig:
        rig.publisher.gate.clear()
        first = rig.deliver(command())
        await until(lambda: rig.commands.in_flight)
        await asyncio.sleep(0.02)
        first.lost = True
        copy = rig.deliver(command(), redelivered=True)
        await asyncio.sleep(0.02)
        rig.publisher.gate.set()
        await until(lambda: copy.answered and "SUCCESS" in rig.publisher.kinds)
        assert sorted(rig.publisher.kinds) == ["DUPLICATE", "STARTED", "SUCCESS"]
        assert len(rig.adapter.calls) == 1


async def test_a_call_that_takes_too_long_is_unknown() -> None:
    async with Rig().running() as rig:
        hold(rig)
        result = await rig.answer(command(callTimeout=0.02))
        assert (result.status, result.error_code) == (ResultKind.UNKNOWN, "CALL_TIMEOUT")
        assert rig.adapter.running == 0


@pytest.mark.parametrize("error", [ValueError("oops"), TimeoutError()])
async def test_a_bug_in_the_adapter_is_unknown_and_kills_nothing(error: Exception) -> None:
    async with Rig().running() as rig:

        async def breaks(_target: Target, _value: str | None, _call: Call) -> Outcome:
            raise error

        rig.adapter.behave = breaks
        result = await rig.answer(command())
        assert (result.status, result.error_code) == (ResultKind.UNKNOWN, "ADAPTER_ERROR")
        rig.adapter.behave = None
        assert (await rig.answer(command(attempt=2))).status is ResultKind.SUCCESS


async def test_an_outcome_that_is_no_json_is_unknown_and_kills_nothing() -> None:
    async with Rig().running() as rig:

        async def breaks(_target: Target, _value: str | None, _call: Call) -> Outcome:
            return Accepted({"id": object()})

        rig.adapter.behave = breaks
        result = await rig.answer(command())
        assert (result.status, result.error_code) == (ResultKind.UNKNOWN, "DRIVER_ERROR")


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (Transmitted(7.5), {"status": ResultKind.TRANSMITTED, "ack_timeout": 7.5}),
        (Accepted({"id": "op-1"}), {"status": ResultKind.ACCEPTED, "operation": {"id": "op-1"}}),
        (Done(None), {"status": ResultKind.SUCCESS, "response_value": None}),
        (Refused("NO", "no", retryable=True), {"status": ResultKind.FAILED, "error_code": "NO", "retryable": True}),
        (NotSent("OFF", "x" * 2000), {"status": ResultKind.NOT_SENT, "error_code": "OFF"}),
        (Unknown("LOST", "lost"), {"status": ResultKind.UNKNOWN, "error_code": "LOST", "error_message": "lost"}),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_each_outcome_becomes_its_result(outcome: Outcome, expected: dict[str, Any]) -> None:
    async with Rig().running() as rig:

        async def tells(_target: Target, _value: str | None, _call: Call) -> Outcome:
            return outcome

        rig.adapter.behave = tells
        result = await rig.answer(command(retrySafety="safe"))
        assert {name: getattr(result, name) for name in expected} == expected
        assert len(result.error_message or "") <= 1024


@pytest.mark.parametrize("body", [b"\xff\x00 rubbish", b"[]", b'{"schemaVersion": 2}', b"{}"])
async def test_what_cant_be_read_is_set_aside_with_a_reason(body: bytes) -> None:
    async with Rig().running() as rig:
        delivery = rig.deliver(body)
        await until(lambda: delivery.answered)
        [letter] = rig.publisher.published
        assert delivery.acked
        assert (letter.exchange, letter.body) == (TOPOLOGY.dead_exchange, body)
        assert letter.headers["x-laneway-queue"] == "dc3.q.point_command.virtual"
        assert letter.headers["x-laneway-by"] == "virtual-1"
        assert letter.headers["x-laneway-reason"]


async def test_what_cant_be_set_aside_is_rejected_and_never_requeued() -> None:
    async with Rig().running() as rig:
        rig.publisher.outcome = lambda _: broker.Outcome.UNKNOWN
        delivery = rig.deliver(b"rubbish")
        await until(lambda: delivery.answered)
        assert delivery.rejected


async def test_a_drain_gives_back_what_has_not_started() -> None:
    async with Rig().running() as rig:
        go = hold(rig)
        running = rig.deliver(command(attempt=1))
        await until(lambda: rig.adapter.calls)
        waiting = rig.deliver(command(attempt=2))
        await until(lambda: rig.commands.in_flight == 2)
        rig.executor.draining = True
        fresh = rig.deliver(command(attempt=3))
        await until(lambda: fresh.answered)
        go.set()
        await until(lambda: running.answered and waiting.answered)
        await asyncio.wait_for(rig.commands.idle(), 1)
    told = {(result.attempt, result.status.value) for result in rig.publisher.results}
    assert told == {(1, "STARTED"), (1, "SUCCESS"), (2, "RELEASED"), (3, "RELEASED")}


async def test_what_a_drain_cuts_off_is_answered() -> None:
    async with Rig().running() as rig:
        hold(rig)
        calling = rig.deliver(command(attempt=1))
        await until(lambda: rig.adapter.calls)
        waiting = rig.deliver(command(attempt=2))
        await until(lambda: rig.commands.in_flight == 2)
    assert calling.answered
    assert waiting.answered
    told = {(result.attempt, result.status.value) for result in rig.publisher.results}
    assert told == {(1, "STARTED"), (1, "UNKNOWN"), (2, "RELEASED")}
