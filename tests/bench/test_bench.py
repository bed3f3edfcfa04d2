"""A tiny form of `make bench-quick`, so that it still runs on the day when somebody needs it."""

from bench.run import Terms, printed, run
from laneway_local.stack import Stack


async def test_every_job_of_the_benchmark_gives_its_figures(infra: Stack) -> None:
    terms = Terms(commands=400, lanes=40, single=64, samples=10, dispatched=200, backlogs=(500,))
    results = await run(infra, terms, print)
    assert results["throughput"]["laneway"] > 0
    assert results["single_requests"]["laneway"] > 0
    assert results["dispatch"]["500"] > 0
    assert 0 < results["latency"]["virtual"]["p50"] <= results["latency"]["virtual"]["p99"]
    assert results["latency"]["mqtt"]["p50"] > 0
    assert set(results["cpu"]) == set(results["memory"]) == {"bulk", "single", "dispatch, 500 waiting"}
    assert results["cpu"]["bulk"]["center"] > 0
    assert results["memory"]["bulk"]["driver-virtual"]["now"] > 1
    assert "commands/s" in printed(results)
