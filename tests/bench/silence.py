"""Latencies beside a device that never answers, with a queue behind it: rounds with and without it, in turns."""

import asyncio
from collections.abc import Callable
from statistics import median
from typing import Any

import orjson

from bench import jobs
from bench.caller import calling
from bench.system import System
from support.stored import rows

SILENT, OTHERS = 500_000, range(500_001, 500_201)
PER_SECOND, AT_ONCE = 50, 5  # commands, of which so many in a request
SETTLES_S = 3.0  # after a thousand were submitted, or done: their stir is not what is measured
LAST_WITHIN_S, WAKES_WITHIN_S = 60.0, 300.0
_SPREAD = """
SELECT percentile_cont(ARRAY[0.5, 0.99]) WITHIN GROUP (ORDER BY EXTRACT(epoch FROM finished_at - create_time) * 1000)
         AS ms, count(*) AS known, count(finished_at) AS ended,
       count(*) FILTER (WHERE status = 'SUCCESS' AND attempt = 1) AS done
FROM point_command WHERE id > :since AND device_id <> :silent
"""


async def silence(
    system: System, driver: str, rounds: int, samples: int, behind: int, say: Callable[[str], None]
) -> dict[str, Any]:
    """The other lanes' p50 and p99 in ms, by rounds; the ratios (with to without) of medians and quietest rounds.

    They get a steady trickle; a latency is what the tables say, from stored to final, so that nobody has to poll.
    """
    await system.register([SILENT, *OTHERS], driver)
    await jobs.latency(system, OTHERS, 20)  # connections, plans, and the driver's trust in its clock
    await _spread(system, samples // 5)
    p50: dict[str, list[float]] = {"without": [], "with": []}
    p99: dict[str, list[float]] = {"without": [], "with": []}
    for _ in range(rounds):
        for which in ("without", "with"):
            if which == "with":
                await _fall_silent(system, driver)
                await jobs.submit(system, [SILENT], behind)
            await asyncio.sleep(SETTLES_S)
            half, most = await _spread(system, samples)
            p50[which].append(round(half, 2))
            p99[which].append(round(most, 2))
            say(f"{driver}, {which} the silent device: p50 {half:.1f} ms, p99 {most:.1f} ms")
            if which == "with":
                await _wake_up(system, driver)
                await system.until_ended(WAKES_WITHIN_S)
    return {"p50_ms": p50, "p99_ms": p99} | {
        f"{name}_ratio{suffix}": round(of(taken["with"]) / of(taken["without"]), 3)
        for name, taken in (("p50", p50), ("p99", p99))
        for suffix, of in (("", median), ("_quietest", min))  # what neighbours do only adds
    }


async def _spread(system: System, samples: int) -> tuple[float, float]:
    """p50 and p99 of so many commands over the other lanes, ms."""
    since = (await rows(system.engine, "SELECT COALESCE(max(id), 0) FROM point_command"))[0][0]
    loop = asyncio.get_running_loop()
    began = loop.time()
    for at in range(0, samples, AT_ONCE):
        await jobs.submit(system, [OTHERS[(at + n) % len(OTHERS)] for n in range(AT_ONCE)], AT_ONCE)
        await asyncio.sleep(max(0.0, began + (at + AT_ONCE) / PER_SECOND - loop.time()))
    while True:
        [found] = await rows(system.engine, _SPREAD, since=since, silent=SILENT)
        if found.ended == samples:
            assert found.known == found.done == samples, found
            return float(found.ms[0]), float(found.ms[1])
        assert loop.time() < began + samples / PER_SECOND + LAST_WITHIN_S, found
        await asyncio.sleep(0.1)


async def _fall_silent(system: System, driver: str) -> None:
    if driver == "mqtt":
        await _behave(system, {"silent": "before"})
    else:
        await system.register([SILENT], driver, address={"silent": True})


async def _wake_up(system: System, driver: str) -> None:
    if driver == "mqtt":
        await _behave(system, {})
    else:
        await system.register([SILENT], driver, address={})


async def _behave(system: System, behaviour: dict[str, Any]) -> None:
    async with calling(system.stack.service_url("simulator")) as simulator:
        status, said = await simulator.put(f"/devices/SN{SILENT}/behaviour", orjson.dumps(behaviour))
        assert status == 200, said
