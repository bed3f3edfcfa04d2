"""The project's own benchmark: whole jobs on a private stack, a table, and a JSON file. `make bench-quick` runs it."""

import asyncio
import json
import os
import platform
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
import uvloop

from bench import jobs
from bench.backlog import pile_up
from bench.claims import claims
from bench.silence import silence
from bench.system import EVERYTHING, System, fresh_system
from laneway_local import services
from laneway_local.stack import Stack
from support.stack import session_stack
from support.stored import books_balance, rows

LATEST = Path(__file__).parent / "results" / "latest.json"
JOBS = ("bulk", "single", "latency", "dispatch", "claims")
LONG = ("silence",)  # jobs that are made when they are asked for
SIMULATOR_AT_ONCE = {"LANEWAY_SIMULATOR_LATENCY_MIN_MS": "0", "LANEWAY_SIMULATOR_LATENCY_MAX_MS": "0"}
LOCKS = range(100_001, 100_021)
FULL = 1_000_000
SPARE = 10_000  # commands that may finish between the last look and the end of the driver
CLAIM_COMMANDS, CLAIM_LANES = 100_000, 5000


@dataclass(frozen=True, kw_only=True)
class Terms:
    """How much is measured."""

    commands: int
    lanes: int
    single: int
    samples: int
    dispatched: int
    backlogs: Sequence[int]
    silent_rounds: int = 5
    silent_samples: int = 1000  # of a round
    silent_behind: int = 1000
    only: Sequence[str] = JOBS


async def run(infra: Stack, terms: Terms, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure what `terms` name, one job after the other, and return it as it goes into the file."""
    results: dict[str, Any] = {"throughput": {}, "single_requests": {}, "latency": {}, "dispatch": {}, "cpu": {}}
    results["memory"] = {}
    if {"bulk", "single", "latency"} & set(terms.only):
        async with fresh_system(infra, EVERYTHING, **SIMULATOR_AT_ONCE) as whole:
            await _whole_jobs(whole, terms, results, say)
    for waiting in terms.backlogs if "dispatch" in terms.only else ():
        say(f"dispatch with {waiting} commands waiting")
        measured = await _dispatch(infra, waiting, terms.dispatched)
        _note(results, "dispatch", str(waiting), measured, f"dispatch, {waiting} waiting")
    if "claims" in terms.only:
        say(f"claims in {CLAIM_LANES} lanes, {CLAIM_COMMANDS} commands waiting")
        async with fresh_system(infra, []) as idle:
            results["claims"] = await claims(idle, CLAIM_COMMANDS, CLAIM_LANES)
    if "silence" in terms.only:
        async with fresh_system(infra, EVERYTHING, **SIMULATOR_AT_ONCE) as whole:
            results["silence"] = {
                driver: await silence(
                    whole, driver, terms.silent_rounds, terms.silent_samples, terms.silent_behind, say
                )
                for driver in ("virtual", "mqtt")
            }
    return results | {"terms": asdict(terms), "machine": machine(), "at": datetime.now(UTC).isoformat()}


async def _whole_jobs(whole: System, terms: Terms, results: dict[str, Any], say: Callable[[str], None]) -> None:
    devices = list(range(1, terms.lanes + 1))
    await whole.register(devices, "virtual")
    await whole.register(LOCKS, "mqtt")
    await jobs.latency(whole, devices, 20)  # connections, plans, and the driver's trust in its clock
    if "latency" in terms.only:
        say("latency of one command")
        results["latency"]["virtual"] = _spread(await jobs.latency(whole, devices, terms.samples))
        await jobs.latency(whole, LOCKS, len(LOCKS))
        results["latency"]["mqtt"] = _spread(await jobs.latency(whole, LOCKS, terms.samples))
    if "bulk" in terms.only:
        say(f"{terms.commands} commands over {terms.lanes} lanes, in batches")
        _note(results, "throughput", "laneway", await jobs.bulk(whole, devices, terms.commands), "bulk")
    if "single" in terms.only:
        say(f"{terms.single} commands, one request each")
        _note(results, "single_requests", "laneway", await jobs.single(whole, devices, terms.single), "single")
    await books_balance(whole.engine)


def _note(results: dict[str, Any], section: str, name: str, measured: jobs.Measured, job: str) -> None:
    results[section][name] = measured.per_second
    results["cpu"][job] = measured.cpu
    results["memory"][job] = measured.memory


def _spread(sorted_ms: Sequence[float]) -> dict[str, float]:
    """Milliseconds: half of them take at most p50."""
    last = len(sorted_ms) - 1
    return {f"p{share}": round(sorted_ms[round(last * share / 100)], 2) for share in (50, 90, 99)}


async def _dispatch(infra: Stack, waiting: int, done: int) -> jobs.Measured:
    driver = services.driver("virtual")
    async with fresh_system(infra, [services.center()]) as behind:
        # enough that the backlog stands to the end; the driver comes when all of it waits
        await pile_up(behind, waiting + done + max(done, SPARE), lanes=max(1000, waiting // 10))
        try:
            await asyncio.to_thread(infra.start_services, [driver], **behind.settings)
            measured = await jobs.drained(behind, done)
        finally:
            await asyncio.to_thread(infra.stop_services, [driver.name])
        [left] = await rows(behind.engine, "SELECT count(*) FROM point_command WHERE finished_at IS NULL")
        assert left[0] >= waiting, f"only {left[0]} were left waiting"
        await books_balance(behind.engine)
        return measured


def machine() -> dict[str, Any]:
    """What it ran on."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.machine(),
    )
    memory_mb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20
    return {
        "cpus": os.cpu_count(), "model": model, "memory_mb": memory_mb, "kernel": platform.release(),
        "python": platform.python_version(), "load_before": round(os.getloadavg()[0], 2),
    }  # fmt: skip


def printed(results: dict[str, Any]) -> str:
    """The table for people."""
    lines = []
    for section, title in (("throughput", "in batches"), ("single_requests", "one request each")):
        lines += [f"{title:24}{rate:10.0f} commands/s" for rate in results[section].values()]
    for waiting, rate in results["dispatch"].items():
        lines.append(f"{f'{int(waiting):,} waiting':24}{rate:10.0f} commands/s")
    for where, spread in results["latency"].items():
        shown = "   ".join(f"{name} {ms:.1f}" for name, ms in spread.items())
        lines.append(f"{f'one command, {where}':24}ms {shown}")
    for driver, spread in results.get("silence", {}).items():
        lines.append(
            f"{f'a silent device, {driver}':24}others' p50 {spread['p50_ratio']:.2f}x, p99 {spread['p99_ratio']:.2f}x; "
            f"quietest rounds {spread['p50_ratio_quietest']:.2f}x, {spread['p99_ratio_quietest']:.2f}x"
        )
    if "claims" in results:
        took = results["claims"]
        lines.append(
            f"{'claim of 128 lanes':24}ms {took['ready']:.1f}, with every second head in back-off "
            f"{took['half_in_back_off']:.1f}: {took['ratio']:.2f}x"
        )
    jobs_of = results["cpu"]
    names = sorted({name for used in jobs_of.values() for name in used} - {"sum"})
    if not names:
        return "\n".join(lines)
    lines.append("\nCPU, ms per command")
    lines += [f"{'':18}" + "".join(f"{job:>26}" for job in jobs_of)]
    lines += [
        f"{name:18}" + "".join(f"{used.get(name, 0):26.2f}" for used in jobs_of.values()) for name in [*names, "sum"]
    ]
    lines.append("\nMemory, MB at the end (most at any time)")
    for name in names:
        held = [job.get(name) for job in results["memory"].values()]
        cells = [f"{one['now']:.0f} ({one['peak']:.0f})" if one else "" for one in held]
        lines.append(f"{name:18}" + "".join(f"{cell:>26}" for cell in cells))
    return "\n".join(lines)


def main(
    commands: Annotated[int, typer.Option(min=1000, help="Commands of the bulk job.")] = 10_000,
    lanes: Annotated[int, typer.Option(min=100, help="Lanes of the bulk job.")] = 1000,
    single: Annotated[int, typer.Option(min=100, help="Commands with a request each.")] = 2000,
    samples: Annotated[int, typer.Option(min=20, help="Single commands whose latency is taken.")] = 200,
    dispatched: Annotated[int, typer.Option(min=100, help="Commands finished beside a backlog.")] = 5000,
    full: Annotated[bool, typer.Option("--full", help=f"Also with {FULL} commands waiting.")] = False,
    only: Annotated[str, typer.Option(help=f"Some of the jobs, by commas; also {', '.join(LONG)}.")] = ",".join(JOBS),
    repeat: Annotated[int, typer.Option(min=1, help="So many runs; each is printed, the last is kept.")] = 1,
    to: Annotated[Path, typer.Option(help="File for the results.")] = LATEST,
) -> None:
    """Measure, print a table, and write the results as JSON."""
    terms = Terms(
        commands=commands,
        lanes=lanes,
        single=single,
        samples=samples,
        dispatched=dispatched,
        backlogs=(1000, 100_000, *((FULL,) if full else ())),
        only=[job.strip() for job in only.split(",")],
    )
    with session_stack(durable=True) as infra:
        for _ in range(repeat):
            results = uvloop.run(run(infra, terms, typer.echo))
            typer.echo(printed(results))
    shutil.rmtree(infra.directory, ignore_errors=True)  # the logs; those of a run that failed stay
    to.parent.mkdir(parents=True, exist_ok=True)
    to.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    typer.run(main)
