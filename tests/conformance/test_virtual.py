import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from conformance.adapter_contract import AdapterBench, AdapterContract, call, started
from laneway_driver.adapters.virtual import VirtualAdapter, factory
from laneway_driver.adapters.virtual.journal import Journal
from laneway_driver.port import AdapterContext, Done, NotSent, Outcome, Refused
from laneway_shared.messages import Target


def device(**address: Any) -> Target:
    return Target(device_sn="A100", point="lock", address=address)


class TestVirtualAdapter(AdapterContract):
    @pytest.fixture
    def bench(self) -> AdapterBench:
        return AdapterBench(
            adapter=VirtualAdapter(Journal(None)),
            answering=device(latencyMs=5),
            wrote=(Done,),
            readable=device(),
            did_read=(Done,),
            silent=device(silent=True),
            unusable=device(latencyMs="soon"),
        )


async def write(target: Target, *, attempt: int = 1) -> Outcome:
    async with started(VirtualAdapter(Journal(None))) as adapter:
        return await adapter.write(target, "1", call(attempt=attempt))


async def test_reads_what_was_written_and_before_that_what_the_address_says() -> None:
    async with started(VirtualAdapter(Journal(None))) as adapter:
        assert await adapter.read(device(), call()) == Done(None)
        assert await adapter.read(device(initial="0"), call()) == Done("0")
        assert await adapter.write(device(initial="0"), "1", call()) == Done("1")
        assert await adapter.read(device(initial="0"), call()) == Done("1")


@pytest.mark.parametrize("retryable", [True, False])
async def test_refuses_with_the_code_of_the_address(retryable: bool) -> None:
    outcome = await write(device(refuse="LOW_BATTERY", retryable=retryable))
    assert isinstance(outcome, Refused)
    assert (outcome.code, outcome.retryable) == ("LOW_BATTERY", retryable)


async def test_fails_the_first_attempts_only() -> None:
    assert isinstance(await write(device(failFirst=2), attempt=2), NotSent)
    assert await write(device(failFirst=2), attempt=3) == Done("1")
    assert isinstance(await write(device(failFirst=1, refuse="BUSY"), attempt=1), Refused)
    assert await write(device(failFirst=1, refuse="BUSY"), attempt=2) == Done("1")
    assert isinstance(await write(device(notSent=True), attempt=9), NotSent)


async def test_the_journal_has_each_execution_before_its_outcome_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "journal.jsonl"
    async with started(VirtualAdapter(Journal(path))) as adapter:
        await adapter.write(device(refuse="NO"), "1", call())
        await adapter.write(device(notSent=True), "1", call())
        await adapter.write(device(), "7", call(attempt=3))
        await adapter.read(device(), call())
        written, read = (json.loads(line) for line in path.read_text().splitlines())
    assert written | {"at": None} == {
        "at": None,
        "deviceSn": "A100",
        "point": "lock",
        "type": "WRITE",
        "value": "7",
        "commandId": call().command_id,
        "attempt": 3,
        "event": "executed",
    }
    assert (read["type"], read["value"]) == ("READ", None)


async def test_a_process_that_stands_still_past_the_call_does_nothing_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    async with started(VirtualAdapter(Journal(path))) as adapter:
        running = asyncio.ensure_future(adapter.write(device(latencyMs=50), "1", call(lasts_s=0.1)))
        await asyncio.sleep(0)
        time.sleep(0.2)  # noqa: ASYNC251 - this is the point
        assert isinstance(await running, NotSent)
    assert path.read_text() == ""


def test_the_factory_reads_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LANEWAY_VIRTUAL_JOURNAL", str(tmp_path / "journal"))
    context = AdapterContext(service="virtual", instance="virtual-1")
    assert isinstance(factory(context), VirtualAdapter)
