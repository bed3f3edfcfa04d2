"""Each safeguard of docs/lifecycle.md §Attempts, in an interleaving that it decides.

With the safeguard the checker finds nothing and the device ends as it should. Without it (switched off here, by
replacing just that rule) the same script makes the checker report the rule that is broken.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy import RowMapping
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from laneway_center.store import migrate
from laneway_center.store.database import open_engine
from laneway_shared import broker
from laneway_shared.lifecycle import Status
from support.histories import make_time_virtual
from support.interleaving import BACKOFF_S, BOUND_S, WINDOW_S, Stage, staged
from support.stored import UNLOCK, run
from support.switched_off import (
    Switch,
    confirms_move_anything,
    copies_are_run,
    final_states_change,
    first_message_is_believed,
    letters_decide,
    letters_off_the_road,
    neither_locks_nor_index,
    no_index,
    no_row_locks,
    no_start_window,
    nothing_is_announced,
    old_tokens_pass,
    scheduler_writes_itself,
)

S = Status
Script = Callable[[Stage], Awaitable[list[str]]]


@pytest.fixture(scope="module")
async def engine(database_url: str) -> AsyncIterator[AsyncEngine]:
    """A database of the current schema in which time is the test's."""
    made = open_engine(database_url, size=12, name="tests")
    await migrate.upgrade(made)
    await make_time_virtual(made)
    await run(made, "CREATE FUNCTION virtual.now() RETURNS timestamptz LANGUAGE sql AS 'SELECT at FROM virtual.clock'")
    yield made
    await made.dispose()


@pytest.fixture
async def stage(engine: AsyncEngine) -> AsyncIterator[Stage]:
    """A stage of its own for each test."""
    async with staged(engine) as stage:
        yield stage


# ------------------------------------------------------------------------------------- scripts
async def confirm_after_result(stage: Stage) -> list[str]:
    """A dispatcher hears late that the broker has a command: the device is at it by now."""
    a = stage.driver("a")
    a.hands_over = True
    command = await stage.submit("10")
    claimed = await stage.claim("slow")
    stage.publish(claimed)
    await a.work()
    await stage.record()
    await stage.mark(claimed)
    stage.device_says(command, 1)
    await stage.record()
    return [command]


async def answer_after_end(stage: Stage) -> list[str]:
    """The device did it and its answer got lost; the attempts are used up; then the answer comes after all."""
    a = stage.driver("a")
    a.hands_over = True
    command = await stage.submit("10", max_attempts=1)
    await stage.dispatch()
    await a.work()
    await stage.record()
    await stage.bound_passes()
    stage.device_says(command, 1)
    await stage.record()
    return [command]


async def head_changes_while_claimed(stage: Stage) -> list[str]:
    """A revocation goes to the head of the lane while a dispatcher takes the head it has seen."""
    a, b = stage.driver("a"), stage.driver("b")

    async def dispatcher(name: str) -> Sequence[RowMapping]:
        try:
            return await stage.claim(name)
        except DBAPIError:  # as the dispatcher does: nothing is claimed, it looks again
            return []

    async with stage.row_locked(grant := await stage.submit("10")):
        first = await stage.begin(dispatcher("first"))
        revoking = await stage.begin(stage.submit("0", priority=0))
        second = await stage.begin(dispatcher("second"))
    for process, claiming in ((a, first), (b, second)):
        claimed = await claiming
        stage.publish(claimed)
        await stage.mark(claimed)
        await process.work()
    await stage.record()
    await stage.dispatch()
    await b.work()
    await stage.record()
    return [grant, await revoking]


async def died_before_its_ack(stage: Stage) -> list[str]:
    """A answers and dies before its ack; the lane goes on; the message comes again, to B."""
    a, b = stage.driver("a"), stage.driver("b")
    old, new = await stage.submit("10"), await stage.submit("20")
    await stage.dispatch()
    a.line.confirms.clear()
    a.take()
    await a.said("SUCCESS")
    await a.die()
    b.thawed.clear()
    b.take()  # the copy is the first in the queue, and B is slow
    await stage.record()
    await stage.dispatch()
    await stage.driver("a again").work()
    await stage.record()
    b.thawed.set()
    await b.done()
    await stage.record()
    return [old, new]


async def frozen_before_its_call(stage: Stage) -> list[str]:
    """A stands still with a message in hand until everybody has given it up; the lane goes on; A wakes."""
    a, b = stage.driver("a"), stage.driver("b")
    old, new = await stage.submit("10"), await stage.submit("20")
    await stage.dispatch()
    a.thawed.clear()
    a.take()
    await stage.bound_passes()
    for _ in (old, new):
        await stage.dispatch()
        await b.work()
        await stage.record()
    a.thawed.set()
    await a.done()
    await stage.record()
    return [old, new]


async def frozen_dispatcher(stage: Stage, *, knows_time: bool = False) -> list[str]:
    """As before, but it is the dispatcher that stands still; and its message goes to a driver that has seen none."""
    b = stage.driver("b")
    old, new = await stage.submit("10"), await stage.submit("20")
    claimed = await stage.claim("frozen")
    await stage.bound_passes()
    for _ in (old, new):
        await stage.dispatch()
        await b.work()
        await stage.record()
    stage.publish(claimed)
    await stage.mark(claimed)
    await stage.driver("new", knows_time=knows_time).work()
    await stage.record()
    return [old, new]


async def killed_in_its_call(stage: Stage) -> list[str]:
    """The device has acted, and the driver dies before it can say so. Much later the device's answer arrives."""
    a, b = stage.driver("a"), stage.driver("b")
    command = await stage.submit("1", point=UNLOCK)
    await stage.dispatch()
    a.answered.clear()
    a.take()
    await acted(stage, 1)
    await a.die()
    await b.work()
    await stage.record()
    await stage.bound_passes()
    if await stage.status(command) == S.MANUAL_REVIEW:
        assert len(stage.device.executions) == 1
    await stage.dispatch()
    await b.work()
    stage.device_says(command, 1)
    await stage.record()
    return [command]


async def recorder_is_behind(stage: Stage) -> list[str]:
    """Everything has been said, but is not read yet, when the scheduler finds that the bound has passed."""
    a, b = stage.driver("a"), stage.driver("b")
    command = await stage.submit("1", point=UNLOCK)
    await stage.dispatch()
    await a.work()
    await stage.time_passes(BOUND_S)
    await stage.ask()
    await stage.time_passes(BACKOFF_S)
    await stage.dispatch()
    await b.work()
    await stage.record()
    return [command]


async def letter_while_it_runs(stage: Stage) -> list[str]:
    """A calls the device when its connection is lost, and nobody takes the copy before its time is over."""
    a, b = stage.driver("a"), stage.driver("b")
    command = await stage.submit("1", point=UNLOCK)
    await stage.dispatch()
    a.reached.clear()
    a.take()
    await a.said("STARTED")
    a.lose_connection()
    await stage.time_passes(WINDOW_S)
    stage.broker.time_out()
    await stage.read_letters()
    await stage.time_passes(BACKOFF_S)
    await stage.dispatch()
    await b.work()
    a.reached.set()
    await a.said("STARTED", "SUCCESS")
    await stage.record()
    return [command]


async def late_publish_within_its_window(stage: Stage) -> list[str]:
    """A second attempt lies with a slow dispatcher when the first one's answer, which names none, ends the command."""
    a, b = stage.driver("a"), stage.driver("b")
    a.hands_over = True
    old, new = await stage.submit("10"), await stage.submit("20")
    await stage.dispatch()
    await a.work()
    await stage.record()
    await stage.bound_passes()
    claimed = await stage.claim("slow")
    stage.device_says(old, None)
    await stage.record()
    await stage.dispatch()
    await b.work()
    await stage.record()
    stage.publish(claimed)
    await b.work()
    await stage.record()
    return [old, new]


async def acted(stage: Stage, times: int) -> None:
    """Wait until the device has acted so often."""
    async with asyncio.timeout(20):
        while len(stage.device.executions) < times:  # noqa: ASYNC110 - the device is a list
            await asyncio.sleep(0.001)


# -------------------------------------------------------------------------------------- tests
@dataclass(frozen=True, kw_only=True)
class Safeguard:
    """A rule, the script it decides, how that ends, and what the checker finds without the rule."""

    name: str
    script: Script
    off: Switch
    breaks: str
    states: tuple[str, ...]  # of the script's commands
    device: dict[str, str]  # its values
    executions: int

    def __str__(self) -> str:
        return self.name


ONE: dict[str, Any] = {"states": ("SUCCESS",), "device": {"level": "10"}, "executions": 1}
DEAD: dict[str, Any] = ONE | {"states": ("DEAD",)}
UNLOCKED: dict[str, Any] = ONE | {"device": {"unlock": "1"}}
TWO: dict[str, Any] = {"states": ("SUCCESS", "SUCCESS"), "device": {"level": "20"}, "executions": 2}
REVOKED: dict[str, Any] = TWO | {"device": {"level": "0"}}
SAFEGUARDS = [
    Safeguard(name=name, script=script, off=off, breaks=breaks, **ends)
    for name, script, off, breaks, ends in [
        ("transition guard, late confirm", confirm_after_result, confirms_move_anything, "transitions", ONE),
        ("transition guard, final states", answer_after_end, final_states_change, "transitions", DEAD),
        ("row locks and index", head_changes_while_claimed, neither_locks_nor_index, "one_in_flight", REVOKED),
        ("redelivery rule", died_before_its_ack, copies_are_run, "order", TWO),
        ("start window", frozen_before_its_call, no_start_window, "in_window", TWO),
        ("start window, first message", frozen_dispatcher, first_message_is_believed, "in_window", TWO),
        ("STARTED", killed_in_its_call, nothing_is_announced, "unsafe_once", UNLOCKED),
        ("DUE through the queue", recorder_is_behind, scheduler_writes_itself, "unsafe_once", UNLOCKED),
        ("letter through the queue", letter_while_it_runs, letters_decide, "unsafe_once", UNLOCKED),
        ("lane token", late_publish_within_its_window, old_tokens_pass, "order", TWO),
    ]
]


@pytest.mark.parametrize("safeguard", SAFEGUARDS, ids=str)
async def test_with_the_safeguard_all_is_well(stage: Stage, safeguard: Safeguard) -> None:
    commands = await safeguard.script(stage)
    assert await stage.findings() == {}
    assert tuple([await stage.status(command) for command in commands]) == safeguard.states
    assert stage.device.values == safeguard.device
    assert len(stage.device.executions) == safeguard.executions


@pytest.mark.parametrize("safeguard", SAFEGUARDS, ids=str)
async def test_without_it_the_checker_finds_what_breaks(
    stage: Stage, safeguard: Safeguard, monkeypatch: pytest.MonkeyPatch
) -> None:
    await safeguard.off(monkeypatch, stage)
    await safeguard.script(stage)
    found = await stage.findings()
    sys.stdout.write("".join(f"{rule}: {one.about} {one.says}\n" for rule, about in found.items() for one in about))
    assert safeguard.breaks in found


@pytest.mark.parametrize(
    ("script", "half_off"),
    [
        (head_changes_while_claimed, no_row_locks),
        (head_changes_while_claimed, no_index),
        (letter_while_it_runs, letters_off_the_road),  # what they say is still judged at the bound
    ],
)
async def test_either_half_is_enough(
    stage: Stage, script: Script, half_off: Switch, monkeypatch: pytest.MonkeyPatch
) -> None:
    await half_off(monkeypatch, stage)
    commands = await script(stage)
    assert await stage.findings() == {}
    assert {await stage.status(command) for command in commands} == {S.SUCCESS}


async def test_a_copy_of_what_was_answered_and_not_acked_is_not_run(stage: Stage) -> None:
    await died_before_its_ack(stage)
    assert {driver.name: driver.kinds for driver in stage.drivers} == {
        "a": ["SUCCESS"], "b": ["REDELIVERED"], "a again": ["SUCCESS"],
    }  # fmt: skip


async def test_a_late_answer_resolves_the_review_of_a_command_whose_driver_died_in_its_call(stage: Stage) -> None:
    command = (await killed_in_its_call(stage))[0]
    assert await stage.way(command) == ["PENDING", "DISPATCHING", "SENT", "MANUAL_REVIEW", "SUCCESS"]
    assert len(stage.device.executions) == 1


@pytest.mark.parametrize("moment", ["unread", "announcing"])
async def test_a_driver_that_lost_its_connection_before_started_comes_back(stage: Stage, moment: str) -> None:
    a, b = stage.driver("a"), stage.driver("b")
    command = await stage.submit("1", point=UNLOCK)
    await stage.dispatch()
    if moment == "unread":
        a.thawed.clear()
        a.take()
    else:  # STARTED arrives, but A never hears so
        a.line.outcome = lambda _: broker.Outcome.UNKNOWN
        a.line.confirms.clear()
        a.take()
        await a.said("STARTED")
    a.lose_connection()
    await b.work()
    assert b.kinds == ["REDELIVERED"]
    await stage.record()
    a.thawed.set()
    a.line.outcome = lambda _: broker.Outcome.CONFIRMED
    a.line.confirms.set()
    await a.done()
    assert stage.device.executions == []
    await stage.record()
    await stage.bound_passes()
    await stage.dispatch()
    await a.work()
    await stage.record()
    assert await stage.status(command) == S.SUCCESS
    assert [execution.attempt for execution in stage.device.executions] == [2]
    assert await stage.findings() == {}


@pytest.mark.parametrize("knows_time", [True, False])
async def test_a_frozen_dispatchers_late_publish_is_never_run(stage: Stage, knows_time: bool) -> None:
    await frozen_dispatcher(stage, knows_time=knows_time)
    assert stage.drivers[-1].kinds == ["EXPIRED"]
    assert stage.device.values == {"level": "20"}
    assert await stage.findings() == {}
