"""The jobs that are measured, each from a caller's first request to the last command's final state."""

import asyncio
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from bench.caller import Caller, calling
from bench.system import POINT, System
from bench.usage import memory, usage
from support.stored import rows

BATCH, STREAMS = 250, 4  # commands in a request, requests in flight
SINGLE_STREAMS = 32
EXPIRE_IN_S = 3600
_SOUND = """
SELECT count(*) AS known, count(*) FILTER (WHERE status = 'SUCCESS' AND attempt = 1) AS done,
       count(*) FILTER (WHERE claimed_at < ended_before OR value < value_before) AS disordered
FROM (SELECT status, attempt, claimed_at, request_value::bigint AS value,
             lag(finished_at) OVER lane AS ended_before, lag(request_value::bigint) OVER lane AS value_before
      FROM point_command WHERE id > :since WINDOW lane AS (PARTITION BY lane_id ORDER BY seq)) AS c
"""


@dataclass(frozen=True)
class Measured:
    """What a job took."""

    per_second: float
    cpu: dict[str, float]  # ms per command
    memory: dict[str, dict[str, float]]  # MB


async def bulk(system: System, devices: Sequence[int], commands: int) -> Measured:
    """`commands` over the lanes of these devices in batches, a few batches in flight, until all are done."""
    parts = [devices[n::STREAMS] for n in range(STREAMS)]  # a lane's commands come from one stream, in order
    share = commands // STREAMS
    requests = [
        [
            orjson.dumps({"commands": [_command(part[n % len(part)], n) for n in range(at, min(at + BATCH, share))]})
            for at in range(0, share, BATCH)
        ]
        for part in parts
    ]
    return await _measure(system, requests, "/commands/batch", share * STREAMS)


async def single(system: System, devices: Sequence[int], commands: int) -> Measured:
    """The same with one request per command."""
    streams = min(SINGLE_STREAMS, len(devices))
    share = commands // streams
    requests = [
        [orjson.dumps(_command(part[n % len(part)], n)) for n in range(share)]
        for part in (devices[n::streams] for n in range(streams))
    ]
    return await _measure(system, requests, "/commands", share * streams)


async def submit(system: System, devices: Sequence[int], commands: int) -> None:
    """`commands` over the lanes of these devices in batches, one after the other, and no more."""
    bodies = [
        orjson.dumps(
            {"commands": [_command(devices[n % len(devices)], n) for n in range(at, min(at + BATCH, commands))]}
        )
        for at in range(0, commands, BATCH)
    ]
    await _submit(system.url, "/commands/batch", bodies)


def _command(device: int, value: int) -> dict[str, Any]:
    return {
        "commandId": str(uuid.uuid4()),
        "deviceId": device,
        "pointId": POINT,
        "type": "WRITE",
        "value": value,
        "expireIn": EXPIRE_IN_S,
    }


async def _measure(system: System, requests: Sequence[Sequence[bytes]], path: str, commands: int) -> Measured:
    since = (await rows(system.engine, "SELECT COALESCE(max(id), 0) FROM point_command"))[0][0]
    lasts = [_last(bodies[-1]) for bodies in requests]
    before, began = usage(system.stack), time.perf_counter()
    async with asyncio.TaskGroup() as streams:
        for bodies in requests:
            streams.create_task(_submit(system.url, path, bodies))
    async with calling(system.url) as center:
        for last in lasts:  # one look at a command is cheap, one at all of them isn't
            await _until_final(center, last, 600)
    await system.until_ended(600)
    took, used = time.perf_counter() - began, usage(system.stack).since(before, commands)
    [sound] = await rows(system.engine, _SOUND, since=since)
    assert (sound.known, sound.done, sound.disordered) == (commands, commands, 0), sound
    return Measured(round(commands / took, 1), used, memory(system.stack))


def _last(body: bytes) -> str:
    given = orjson.loads(body)
    return str(given.get("commands", [given])[-1]["commandId"])


async def _until_final(center: Caller, command_id: str, within_s: float) -> None:
    deadline = time.perf_counter() + within_s
    while not (await center.get(f"/commands/{command_id}"))[1]["final"]:
        assert time.perf_counter() < deadline, f"{command_id} is still open"
        await asyncio.sleep(0.02)


async def _submit(url: str, path: str, bodies: Sequence[bytes]) -> None:
    async with calling(url) as center:
        for body in bodies:
            status, said = await center.post(path, body)
            while status == 503:  # an overloaded machine; the same again is safe
                status, said = await center.post(path, body)
            assert status == 202 or (status == 200 and not said.get("refused")), (status, said)


async def latency(system: System, devices: Sequence[int], samples: int) -> list[float]:
    """Milliseconds from one submit to its final state being seen, one command after the other, sorted."""
    async with calling(system.url) as center:
        return sorted([await _one(center, devices[n % len(devices)], n) for n in range(samples)])


async def _one(center: Caller, device: int, value: int) -> float:
    command = _command(device, value)
    began = time.perf_counter()
    status, said = await center.post("/commands", orjson.dumps(command))
    assert status == 202, said
    while not said["final"]:
        status, said = await center.get(f"/commands/{command['commandId']}?wait=5")
        assert status == 200, said
        assert time.perf_counter() < began + 30, said
    took = time.perf_counter() - began
    assert said["status"] == "SUCCESS", said
    return took * 1000


async def drained(system: System, done: int) -> Measured:
    """The rate at which the standing backlog's commands finish, over `done` of them."""
    warm = done // 10
    async with calling(system.url) as center:
        first = await _until_finished(center, warm)
        before, began = usage(system.stack), time.perf_counter()
        last = await _until_finished(center, first + done)
        took, used = time.perf_counter() - began, usage(system.stack).since(before, last - first)
        held = memory(system.stack)
    return Measured(round((last - first) / took, 1), used, held)


async def _until_finished(center: Caller, count: int) -> int:
    deadline = time.perf_counter() + 300
    while True:
        finished = sum(
            float(line.rpartition(" ")[2])
            for line in (await center.text("/metrics")).splitlines()
            if line.startswith("laneway_outcomes_total{")
        )
        if finished >= count:
            return round(finished)
        assert time.perf_counter() < deadline, f"{finished} of {count} finished"
        await asyncio.sleep(0.25)  # seldom: it costs the center 5 ms
