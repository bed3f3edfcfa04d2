"""The whole way of a command, through HTTP, with all services as processes."""

import asyncio
import json
import uuid
from typing import Any

from laneway_center.store.database import open_engine
from laneway_shared.topology import Topology
from support.laneway import BATTERY, SWITCH, UNLOCK, VOLUME, Laneway, serial, until
from support.stored import rows

LOCK, VIRTUAL = 2, 1


async def test_a_write_to_a_lock_is_done_once_and_every_step_has_its_time(laneway: Laneway) -> None:
    command_id = await laneway.accepted(LOCK, "1")
    done = await laneway.ended(command_id)
    assert (done["status"], done["responseValue"]) == ("SUCCESS", "1")
    events = await laneway.timeline(command_id)
    kinds = [event["kind"] for event in events]
    assert [kinds[0], kinds[1], kinds[-1]] == ["STORED", "CLAIMED", "SUCCESS"]
    assert {"CONFIRMED", "TRANSMITTED"} <= set(kinds) or kinds.index("SUCCESS") < 4, "an answer may be faster"
    assert [event["at"] for event in events] == sorted(event["at"] for event in events)
    assert len(await laneway.executions(LOCK, command_id)) == 1


async def test_a_read_brings_what_the_device_reports(laneway: Laneway) -> None:
    await laneway.ended(await laneway.accepted(LOCK, 37, VOLUME))
    done = await laneway.ended(await laneway.accepted(LOCK, None, VOLUME))
    assert (done["status"], done["responseValue"]) == ("SUCCESS", "37")
    assert (await laneway.ended(await laneway.accepted(VIRTUAL, None, BATTERY)))["status"] == "SUCCESS"


async def test_an_unsafe_command_announces_itself_before_the_call(laneway: Laneway) -> None:
    command_id = await laneway.accepted(LOCK, "1", UNLOCK)
    assert (await laneway.ended(command_id))["status"] == "SUCCESS"
    assert "STARTED" in [event["kind"] for event in await laneway.timeline(command_id)]
    assert len(await laneway.executions(LOCK, command_id)) == 1


async def test_a_lock_that_refuses_fails_and_one_that_is_busy_is_asked_again(laneway: Laneway) -> None:
    await laneway.behave(LOCK, refuse=True, times=1)
    refused = await laneway.ended(await laneway.accepted(LOCK, "1"))
    assert (refused["status"], refused["errorCode"]) == ("FAILED", "DEVICE_REFUSED")
    await laneway.behave(LOCK, busy=True, times=1)
    command_id = await laneway.accepted(LOCK, "1", expireIn=60)
    assert (await laneway.ended(command_id))["attempt"] == 2
    assert (await laneway.way(command_id)).count("DISPATCHING") == 2
    assert len(await laneway.executions(LOCK, command_id)) == 1


async def test_a_late_and_a_repeated_answer_change_nothing(laneway: Laneway) -> None:
    await laneway.behave(LOCK, duplicateAck=True, times=1)
    command_id = await laneway.accepted(LOCK, "1")
    await laneway.ended(command_id)

    async def noted() -> bool:
        events = await laneway.timeline(command_id)
        return [e["note"] for e in events if e["kind"] == "SUCCESS"][1:] == ["came after the end"]

    await until(noted)
    assert (await laneway.show(command_id))["status"] == "SUCCESS"


async def test_the_same_id_twenty_times_at_once_is_executed_once(laneway: Laneway) -> None:
    command_id = str(uuid.uuid4())
    answers = await asyncio.gather(
        *(
            laneway.centers[n % 2].post(
                "/commands",
                json={"commandId": command_id, "deviceId": LOCK, "pointId": SWITCH, "type": "WRITE", "value": "1"},
            )
            for n in range(20)
        )
    )
    assert sorted(answer.status_code for answer in answers) == [200] * 19 + [202]
    assert (await laneway.ended(command_id))["status"] == "SUCCESS"
    assert len(await laneway.executions(LOCK, command_id)) == 1
    other = await laneway.submit(LOCK, "0", commandId=command_id)
    assert (other.status_code, other.json()["code"]) == (409, "COMMAND_ID_REUSED")


async def test_a_silent_lock_ends_in_time_and_an_unlock_is_left_to_a_person(laneway: Laneway) -> None:
    await laneway.register([20, 21], "mqtt")
    await laneway.behave(20, silent="before", times=1)
    await laneway.behave(21, silent="after", times=1)
    safe = await laneway.accepted(20, "1", expireIn=2)
    unsafe = await laneway.accepted(21, "1", UNLOCK, expireIn=2)
    assert (await laneway.ended(safe))["status"] == "TIMEOUT"
    review = await laneway.ended(unsafe)
    assert review["status"] == "MANUAL_REVIEW"
    attempt = {"msgId": f"{unsafe}.1", "result": "ok", "value": "1"}
    (await laneway.simulator.post(f"/devices/{serial(21)}/acks", json=attempt)).raise_for_status()
    await until(lambda: is_status(laneway, unsafe, "SUCCESS"))
    assert len(await laneway.executions(21, unsafe)) == 1


async def is_status(laneway: Laneway, command_id: str, status: str) -> bool:
    return bool((await laneway.show(command_id))["status"] == status)


async def test_rubbish_by_hand_is_set_aside_with_a_reason_and_nothing_stops(
    laneway: Laneway, database_url: str
) -> None:
    names = Topology(prefix=laneway.prefix)
    stranger = str(uuid.uuid4())
    result = {"commandId": stranger, "attempt": 1, "tenantId": 1, "status": "SUCCESS"}
    unreadable = [b"\xff\x00rubbish", b"{}", b"[[[", b'{"schemaVersion":99}', b"null", b'"text"', b""]
    absurd = "9999-12-31T23:59:59-14:00"
    deep: dict[str, Any] = {}
    for _ in range(300):
        deep = {"a": deep}
    command = {"schemaVersion": 1, "commandId": stranger, "attempt": 1}
    changes: list[dict[str, Any]] = [
        {"attempt": 3_000_000_000},
        {"tenantId": 2**63},
        {"operation": deep},
        {"operation": {"id": 10**30}},
        {"finishedAt": absurd},
        {"errorMessage": "\x00" * 5000, "instance": "\x00"},
    ]
    absurd_results = [json.dumps(result | change).encode() for change in changes]
    absurd_command = json.dumps(command | {"startBy": absurd, "attempt": 3_000_000_000}).encode()
    absurd_beat = b'{"kind":"driver","service":"virtual","instance":"x","version":"\\u0000"}'
    for exchange, key, bodies in (
        (names.command_exchange, names.command_key("virtual"), [*unreadable, json.dumps(command).encode()]),
        (names.command_exchange, names.command_key("mqtt"), [*unreadable, absurd_command]),
        (names.result_exchange, names.result_key("mqtt"), absurd_results),
        (
            names.result_exchange,
            names.result_key("virtual"),
            [*unreadable, json.dumps(result).encode(), json.dumps([result, 7, {"status": "NONSENSE"}]).encode()],
        ),
        (names.dead_exchange, "anything", [*unreadable, json.dumps(command).encode(), absurd_command]),
        (names.state_exchange, names.state_key("virtual"), [*unreadable, absurd_beat]),
    ):
        await laneway.publish(exchange, key, *bodies)
    engine = open_engine(database_url, size=2, name="tests")

    async def all_set_aside() -> bool:
        letters = await rows(engine, "SELECT queue, reason, explanation FROM dead_letter")
        assert all(letter.explanation for letter in letters), letters
        by_queue = {queue: sum(letter.queue == queue for letter in letters) for queue in {x.queue for x in letters}}
        want = {
            names.command_queue("virtual"): 8,
            names.command_queue("mqtt"): 8,
            names.result_queue: 7 + 1 + 3 + 6,
            names.dead_queue: 9,
        }
        return by_queue == want

    try:
        await until(all_set_aside, 60)
        reasons = {letter.reason for letter in await rows(engine, "SELECT reason FROM dead_letter")}
        assert {"rejected", "unreadable", "unknown_command"} <= reasons
        ends = await rows(engine, "SELECT driver, reason, count(*) AS n FROM dead_end WHERE ended_as IS NULL"
                          " GROUP BY 1, 2")  # fmt: skip
        assert sum(end.n for end in ends) == 8 + 8 + 17 + 9, "each is one dead letter for operators"
        assert {end.reason for end in ends} == {"unreadable", "unknown_command"}
        assert {end.driver for end in ends} == {"virtual", "mqtt", None}
    finally:
        await engine.dispose()
    for device in (LOCK, VIRTUAL):
        assert (await laneway.ended(await laneway.accepted(device, "1")))["status"] == "SUCCESS"


async def test_two_thousand_over_a_hundred_devices_in_order_and_none_twice(laneway: Laneway) -> None:
    locks, virtual = range(1000, 1050), range(2000, 2050)
    await laneway.register(locks, "mqtt")
    await laneway.register(virtual, "virtual")
    devices = [*locks, *virtual]
    commands = [
        {"deviceId": devices[n % 100], "pointId": VOLUME, "type": "WRITE", "value": n, "expireIn": 120}
        for n in range(2000)
    ]
    ids = await laneway.submit_batches(commands)
    await laneway.all_ended(within_s=150)
    assert await laneway.outcomes(devices) == {"SUCCESS": 2000}
    order = {device: [i for n, i in enumerate(ids) if devices[n % 100] == device] for device in devices}
    for lock in locks:
        assert [entry["commandId"] for entry in await laneway.executions(lock)] == order[lock]
    done: dict[str, list[str]] = {}
    for entry in laneway.virtual_executions():
        done.setdefault(entry["deviceSn"], []).append(entry["commandId"])
    for device in virtual:
        assert done[serial(device)] == order[device]
