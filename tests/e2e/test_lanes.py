"""The rules of lanes on the whole system: gates over MQTT, holds, intents, and a device that never answers."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from support.laneway import SWITCH, UNLOCK, VOLUME, Laneway, serial, until

LATE_MS = 1500
WHY: dict[str, Any] = {"json": {"reason": "test"}, "headers": {"X-Operator": "shift"}}


async def told(laneway: Laneway, device: int, commands: Sequence[str]) -> list[str]:
    """What a lock saw of these commands, in order, such as "received 0"."""
    journal = (await laneway.simulator.get(f"/devices/{serial(device)}/journal")).json()["entries"]
    seen = ("received", "executed", "answered")
    return [f"{e['event']} {commands.index(e['commandId'])}" for e in journal if e["event"] in seen]


async def moments(laneway: Laneway, command_id: str) -> dict[str, str]:
    """When it came into each state for the first time, by the database's clock."""
    found: dict[str, str] = {}
    for event in await laneway.timeline(command_id):
        found.setdefault(event["to"], event["at"])
    return found


@pytest.mark.parametrize(("point", "device"), [(VOLUME, 100), (UNLOCK, 101)])
async def test_gate_ack_sends_the_next_one_after_the_answer(laneway: Laneway, point: int, device: int) -> None:
    await laneway.register([device], "mqtt")
    await laneway.behave(device, lateAckMs=LATE_MS, times=1)
    pair = [await laneway.accepted(device, "1", point) for _ in range(2)]
    assert [(await laneway.ended(each))["status"] for each in pair] == ["SUCCESS", "SUCCESS"]
    assert await told(laneway, device, pair) == [
        f"{event} {n}" for n in (0, 1) for event in ("received", "executed", "answered")
    ]
    first, second = [await moments(laneway, each) for each in pair]
    assert second["DISPATCHING"] >= first["SUCCESS"]


async def test_gate_transport_sends_the_next_one_before_the_answer(laneway: Laneway) -> None:
    device = 102
    await laneway.register([device], "mqtt", gate="transport")
    await laneway.behave(device, lateAckMs=LATE_MS, times=1)
    pair = [await laneway.accepted(device, "1", VOLUME) for _ in range(2)]
    assert [(await laneway.ended(each))["status"] for each in reversed(pair)] == ["SUCCESS", "SUCCESS"]
    seen = await told(laneway, device, pair)
    assert seen.index("received 1") < seen.index("answered 0")
    assert seen.index("executed 0") < seen.index("executed 1")
    first, second = [await moments(laneway, each) for each in pair]
    assert first["AWAITING_ACK"] <= second["DISPATCHING"] < first["SUCCESS"]


async def test_gate_transport_ends_by_its_timeout_and_is_never_tried_again(laneway: Laneway) -> None:
    device = 103
    await laneway.register([device], "mqtt", gate="transport", ackTimeout=2)
    await laneway.behave(device, silent="before", times=2)
    safe = await laneway.accepted(device, 1, VOLUME)
    unsafe = await laneway.accepted(device, "1", UNLOCK, gate="transport")
    third = await laneway.accepted(device, 2, VOLUME)
    assert (await laneway.ended(third))["status"] == "SUCCESS"
    assert not (await laneway.show(safe))["final"], "its answer is still due"
    ends = [await laneway.ended(each) for each in (safe, unsafe)]
    assert [(end["status"], end["attempt"]) for end in ends] == [("TIMEOUT", 1), ("MANUAL_REVIEW", 1)]
    assert (await laneway.way(safe)).count("DISPATCHING") == 1


async def test_a_hold_on_a_busy_lane_survives_the_result_that_frees_it(laneway: Laneway) -> None:
    device = 104
    lane = f"/lanes/device:{device}"
    await laneway.register([device], "mqtt")
    await laneway.behave(device, lateAckMs=LATE_MS, times=1)
    first = await laneway.accepted(device, 1, VOLUME)

    async def flies() -> bool:
        return bool((await laneway.show(first))["status"] == "AWAITING_ACK")

    await until(flies)
    (await laneway.center.post(f"{lane}/hold", **WHY)).raise_for_status()
    second = await laneway.accepted(device, 2, VOLUME)
    assert (await laneway.ended(first))["status"] == "SUCCESS"
    why = (await laneway.centers[1].get(f"{lane}/explain")).json()
    assert (why["blockers"][0]["kind"], why["next"]) == ("operator_hold", [second])
    assert (await laneway.show(second))["status"] == "PENDING"
    (await laneway.centers[1].post(f"{lane}/release", **WHY)).raise_for_status()
    assert (await laneway.ended(second))["status"] == "SUCCESS"
    first_end, second_begin = [
        (await moments(laneway, each))[s] for each, s in ((first, "SUCCESS"), (second, "DISPATCHING"))
    ]
    assert first_end < second_begin


async def test_a_revoked_grant_is_never_done_and_what_is_urgent_goes_next(laneway: Laneway) -> None:
    device = 105
    lane = f"/lanes/device:{device}"
    await laneway.register([device], "mqtt")
    (await laneway.center.post(f"{lane}/hold", **WHY)).raise_for_status()
    grants = [await laneway.accepted(device, n, VOLUME, intentKey=f"face:{n}", purpose="grant") for n in range(10)]
    urgent = await laneway.accepted(device, "1", SWITCH, priority=0)
    revocation = await laneway.accepted(device, 99, VOLUME, intentKey="face:4", purpose="revoke")
    revoked = await laneway.show(grants[4])
    assert (revoked["status"], revoked["errorCode"]) == ("SUPERSEDED", "REVOKED")
    (await laneway.center.post(f"{lane}/release", **WHY)).raise_for_status()
    await laneway.ended(grants[-1])
    done = [entry["commandId"] for entry in await laneway.executions(device)]
    assert done == [urgent, revocation, *(each for each in grants if each != grants[4])]


async def test_relaxed_lets_the_others_go_first_and_strict_waits(laneway: Laneway) -> None:
    for device, retry in ((106, "strict"), (107, "relaxed")):
        await laneway.register([device], "mqtt", retry=retry)
        await laneway.behave(device, busy=True, times=1)
    started = {
        device: [await laneway.accepted(device, n, VOLUME, expireIn=120) for n in range(3)] for device in (106, 107)
    }
    for pair in started.values():
        assert [(await laneway.ended(each))["status"] for each in pair] == ["SUCCESS"] * 3
    for device, order in ((106, [0, 1, 2]), (107, [1, 2, 0])):
        done = [entry["commandId"] for entry in await laneway.executions(device)]
        assert done == [started[device][n] for n in order]


async def test_many_commands_behind_a_device_that_never_answers_keep_no_other_lane_waiting(laneway: Laneway) -> None:
    silent, others = 110, list(range(120, 140))
    await laneway.register([silent, *others], "mqtt")
    await laneway.behave(silent, silent="before")
    behind = [{"deviceId": silent, "pointId": VOLUME, "type": "WRITE", "value": n, "expireIn": 60} for n in range(500)]
    first, *_ = await laneway.submit_batches(behind)

    async def waits() -> bool:
        return bool((await laneway.show(first))["status"] == "AWAITING_ACK")

    await until(waits)
    ids = await laneway.submit_batches(
        [{"deviceId": device, "pointId": VOLUME, "type": "WRITE", "value": n} for n in range(10) for device in others]
    )
    ends = await asyncio.gather(*(laneway.ended(each) for each in ids))
    assert {end["status"] for end in ends} == {"SUCCESS"}
    assert (await laneway.show(first))["status"] in ("AWAITING_ACK", "RETRY_WAIT"), "still being waited for"
    lane = (await laneway.center.get(f"/lanes/device:{silent}/explain")).json()
    assert (lane["waiting"], lane["inFlight"]["commandId"]) == (499 + (lane["head"]["status"] == "RETRY_WAIT"), first)
    async with asyncio.TaskGroup() as cancels:
        for shown in (await laneway.center.get("/commands", params={"deviceId": silent, "limit": 500})).json()[
            "commands"
        ]:
            cancels.create_task(laneway.center.post(f"/commands/{shown['commandId']}/cancel"))
