"""Parts go away in the middle of the work and come back: every command ends, in time, and the lanes go on."""

import asyncio
import time

import pytest

from support.laneway import UNLOCK, VOLUME, Laneway, until

DEADLINE_S, WINDOW_AND_CALL_S, GRACE_S = 3, 5, 5
NOISE_S = 15  # polls, and a machine that is busy with other things


async def test_a_stopped_driver_refuses_at_once_and_is_back_when_it_is(laneway: Laneway) -> None:
    stack = laneway.stack
    await asyncio.to_thread(stack.stop_services, ["driver-virtual", "driver-virtual-2"])

    async def refused() -> bool:
        return (await laneway.submit(1, "1")).status_code == 409

    await until(refused)
    assert (await laneway.submit(1, "1")).json()["code"] == "DRIVER_OFFLINE"
    for name in ("driver-virtual", "driver-virtual-2"):
        await asyncio.to_thread(stack.restart_service, name)
    await laneway.until_online("virtual")
    assert (await laneway.ended(await laneway.accepted(1, "1")))["status"] == "SUCCESS"


@pytest.mark.parametrize("point", [VOLUME, UNLOCK])
async def test_a_driver_killed_right_after_the_submit_ends_it_in_time_and_the_lane_goes_on(
    laneway: Laneway, point: int
) -> None:
    await laneway.register([30], "virtual")
    for name in ("driver-virtual", "driver-virtual-2"):
        laneway.stack.kill_service(name)
    began = time.monotonic()
    lost = await laneway.accepted(30, "1", point, expireIn=DEADLINE_S)
    behind = await laneway.accepted(30, "2", point, expireIn=120)
    ended = await laneway.ended(lost)
    assert ended["status"] in ("TIMEOUT", "EXPIRED"), ended
    assert time.monotonic() - began < DEADLINE_S + WINDOW_AND_CALL_S + GRACE_S + NOISE_S
    for name in ("driver-virtual", "driver-virtual-2"):
        await asyncio.to_thread(laneway.stack.restart_service, name)
    assert (await laneway.ended(behind, within_s=90))["status"] == "SUCCESS"
    assert [e["commandId"] for e in laneway.virtual_executions() if e["deviceSn"] == "SN30"][-1] == behind


async def test_rabbitmq_restarts_in_the_middle_of_five_hundred(laneway: Laneway) -> None:
    devices = [*range(300, 325), *range(400, 425)]
    await laneway.register(devices[:25], "virtual", address={"latencyMs": 20})
    await laneway.register(devices[25:], "mqtt")
    pids = service_pids(laneway)
    commands = [
        {"deviceId": devices[n % 50], "pointId": VOLUME, "type": "WRITE", "value": n, "expireIn": 300}
        for n in range(500)
    ]
    ids = await laneway.submit_batches(commands[:400])
    await asyncio.to_thread(laneway.stack.rabbitmq.stop)
    # the broker is away: commands are still accepted, and readiness says what is missing
    ids += await laneway.submit_batches(commands[400:])
    ready = await laneway.center.get("/readyz")
    assert (ready.status_code, ready.json()["checks"]["broker"]) == (200, "away")
    await asyncio.to_thread(laneway.stack.rabbitmq.start)
    await laneway.all_ended(within_s=170)
    assert service_pids(laneway) == pids, "nobody was restarted"
    outcomes = await laneway.outcomes(devices)
    assert outcomes["SUCCESS"] == 500, outcomes
    executed = [e["commandId"] for e in laneway.virtual_executions() if e["deviceSn"] in {f"SN{d}" for d in devices}]
    for lock in devices[25:]:
        executed += [e["commandId"] for e in await laneway.executions(lock)]
    assert set(executed) == set(ids)
    await in_order(laneway, devices, ids)


async def in_order(laneway: Laneway, devices: list[int], ids: list[str]) -> None:
    """Per device the first executions come in the order of the submits (a safe command may run again)."""
    for n, device in enumerate(devices):
        wanted = ids[n :: len(devices)]
        if device < 400:
            ran = [e["commandId"] for e in laneway.virtual_executions() if e["deviceSn"] == f"SN{device}"]
        else:
            ran = [e["commandId"] for e in await laneway.executions(device)]
        assert list(dict.fromkeys(ran)) == wanted


async def test_mosquitto_restarts_and_locks_are_reached_again(laneway: Laneway) -> None:
    await laneway.register([500, 501], "mqtt")
    await asyncio.to_thread(laneway.stack.mosquitto.stop)
    command_id = await laneway.accepted(500, 1, VOLUME, expireIn=100, maxAttempts=20)
    await asyncio.to_thread(laneway.stack.mosquitto.start)
    assert (await laneway.ended(command_id, within_s=110))["status"] == "SUCCESS"
    assert (await laneway.ended(await laneway.accepted(501, "1", expireIn=60), within_s=70))["status"] == "SUCCESS"


async def test_postgresql_restarts_and_everything_goes_on(laneway: Laneway) -> None:
    devices = list(range(600, 620))
    await laneway.register(devices, "virtual", address={"latencyMs": 20})
    pids = service_pids(laneway)
    commands = [
        {"deviceId": devices[n % 20], "pointId": VOLUME, "type": "WRITE", "value": n, "expireIn": 300}
        for n in range(200)
    ]
    await laneway.submit_batches(commands)
    await asyncio.to_thread(laneway.stack.postgres.stop)
    async with asyncio.timeout(30):
        answer = await laneway.submit(600, "1")
    assert (answer.status_code, answer.json()["code"]) == (503, "DATABASE_AWAY")
    await asyncio.to_thread(laneway.stack.postgres.start)
    await laneway.all_ended(within_s=150)
    assert service_pids(laneway) == pids
    assert (await laneway.outcomes(devices))["SUCCESS"] == 200


async def test_a_center_killed_in_the_middle_leaves_the_work_to_the_other(laneway: Laneway) -> None:
    devices = list(range(700, 730))
    await laneway.register(devices, "virtual", address={"latencyMs": 5})
    commands = [
        {"deviceId": devices[n % 30], "pointId": VOLUME, "type": "WRITE", "value": n, "expireIn": 300}
        for n in range(600)
    ]
    ids = await laneway.submit_batches(commands)
    laneway.stack.kill_service("center-2")
    await laneway.all_ended(within_s=170)
    await asyncio.to_thread(laneway.stack.restart_service, "center-2")
    assert (await laneway.outcomes(devices))["SUCCESS"] == 600
    for n, device in enumerate(devices):
        ran = [e["commandId"] for e in laneway.virtual_executions() if e["deviceSn"] == f"SN{device}"]
        assert list(dict.fromkeys(ran)) == ids[n::30]


def service_pids(laneway: Laneway) -> dict[str, int]:
    state = laneway.stack.state.read()
    return {name: state.children[name].who.pid for name in state.services if name in state.children}
