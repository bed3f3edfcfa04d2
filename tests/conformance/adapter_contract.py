"""What every device adapter must do, as tests to inherit from.

A module `test_<adapter>.py` derives from `AdapterContract` and gives it a `bench`: the adapter, not yet
started, and targets that show each kind of behaviour.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from copy import deepcopy
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import get_args

import pytest

from laneway_driver.port import Call, DeviceAdapter, NotSent, Outcome, Refused, Unknown
from laneway_shared.messages import Target

CALL_S = 5.0
OUTCOMES = get_args(Outcome)


@dataclass(frozen=True, kw_only=True)
class AdapterBench:
    """An adapter and what it can be tried on. A target that the protocol can't have is None."""

    adapter: DeviceAdapter
    answering: Target  # a point that can be written
    wrote: tuple[type[Outcome], ...]  # outcomes of a write there
    value: str = "1"  # what may be written
    readable: Target | None = None  # a point that can be read
    did_read: tuple[type[Outcome], ...] = ()  # outcomes of a read there
    silent: Target | None = None  # calls hang until their time is over
    unusable: Target | None = None  # an address or profile that makes no sense


def call(*, attempt: int = 1, lasts_s: float = CALL_S, begins_within_s: float = 10) -> Call:
    """A call that may begin now."""
    now, loop_now = datetime.now(UTC), asyncio.get_running_loop().time()
    return Call(
        tenant_id=1,
        command_id="0190c3e2-0000-7000-8000-000000000001",
        attempt=attempt,
        begin_by=loop_now + begins_within_s,
        deadline=loop_now + lasts_s,
        start_by=now + timedelta(seconds=begins_within_s),
        expire_at=now + timedelta(seconds=60),
    )


@contextlib.asynccontextmanager
async def started(adapter: DeviceAdapter) -> AsyncIterator[DeviceAdapter]:
    """The adapter, ready for calls."""
    await adapter.start()
    try:
        async with asyncio.timeout(10):
            while adapter.health() is not None:  # noqa: ASYNC110 - health is a question, not an event
                await asyncio.sleep(0.01)
        yield adapter
    finally:
        await adapter.stop()


class AdapterContract:
    """Inherited by each adapter's test class."""

    @pytest.fixture
    def bench(self) -> AdapterBench:
        raise NotImplementedError

    async def test_a_write_tells_one_of_its_outcomes(self, bench: AdapterBench) -> None:
        async with started(bench.adapter) as adapter:
            outcome = await adapter.write(bench.answering, bench.value, call())
        assert isinstance(outcome, bench.wrote)

    async def test_a_read_tells_one_of_its_outcomes(self, bench: AdapterBench) -> None:
        if bench.readable is None:
            pytest.skip("nothing to read in this protocol")
        async with started(bench.adapter) as adapter:
            outcome = await adapter.read(bench.readable, call())
        assert isinstance(outcome, bench.did_read)

    async def test_a_target_is_never_changed(self, bench: AdapterBench) -> None:
        before = deepcopy(bench.answering)
        async with started(bench.adapter) as adapter:
            await adapter.write(bench.answering, bench.value, call())
        assert bench.answering == before

    async def test_an_unusable_target_is_refused_in_words_and_not_by_an_exception(self, bench: AdapterBench) -> None:
        if bench.unusable is None:
            pytest.skip("every target is usable in this protocol")
        async with started(bench.adapter) as adapter:
            outcome = await adapter.write(bench.unusable, bench.value, call())
        assert isinstance(outcome, Refused)
        assert outcome.code
        assert outcome.message
        assert not outcome.retryable

    async def test_a_call_that_comes_too_late_is_not_begun(self, bench: AdapterBench) -> None:
        async with started(bench.adapter) as adapter:
            outcome = await adapter.write(bench.answering, bench.value, call(begins_within_s=-0.001))
        assert isinstance(outcome, NotSent)
        assert outcome.code == "START_WINDOW"

    async def test_calls_for_different_devices_run_at_the_same_time(self, bench: AdapterBench) -> None:
        async with started(bench.adapter) as adapter, asyncio.timeout(CALL_S):
            calls = [adapter.write(bench.answering, bench.value, call(attempt=number)) for number in range(1, 21)]
            outcomes = await asyncio.gather(*calls)
        assert all(isinstance(outcome, bench.wrote) for outcome in outcomes)

    async def test_a_silent_device_holds_up_no_other(self, bench: AdapterBench) -> None:
        if bench.silent is None:
            pytest.skip("a call is over with the hand-over in this protocol")
        async with started(bench.adapter) as adapter, asyncio.timeout(CALL_S):
            hanging = asyncio.ensure_future(adapter.write(bench.silent, bench.value, call()))
            outcome = await adapter.write(bench.answering, bench.value, call())
            assert not hanging.done()
            hanging.cancel()
            await asyncio.wait([hanging])
        assert isinstance(outcome, bench.wrote)

    async def test_a_call_whose_time_is_over_leaves_nothing_running(self, bench: AdapterBench) -> None:
        async with started(bench.adapter) as adapter:
            target = bench.silent or bench.answering
            before = asyncio.all_tasks()
            call_of_it = asyncio.ensure_future(adapter.write(target, bench.value, call()))
            await asyncio.sleep(0)
            call_of_it.cancel()
            await asyncio.wait([call_of_it], timeout=1)
            assert call_of_it.done()
            assert asyncio.all_tasks() <= before
            outcome = await adapter.write(bench.answering, bench.value, call())
        assert isinstance(outcome, (*bench.wrote, Unknown))

    async def test_it_is_well_while_it_runs_and_leaves_no_task_behind(self, bench: AdapterBench) -> None:
        before = asyncio.all_tasks()
        async with started(bench.adapter) as adapter:
            assert adapter.health() is None
        assert asyncio.all_tasks() <= before
