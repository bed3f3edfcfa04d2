"""A chaos run: load and seeded faults on a system of processes, then the checker. `make chaos` calls `main`."""

import asyncio
import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from chaos.faults import FaultMaker, Roads
from chaos.load import DEADLINES_S, Load
from chaos.people import People
from chaos.plan import Fault, make_plan
from chaos.policies import AGEING_S, Lanes, register
from chaos.promises import broken_promises
from laneway_center.store.database import open_engine
from laneway_center.verify.snapshot import load as load_facts
from laneway_local import services
from laneway_local.stack import DATABASE_URL, Stack
from support.laneway import Laneway, clients
from support.stack import fresh_database, session_stack
from support.stored import books_balance, rows

SETTLE_S = 150.0  # after the last fault: the longest deadline, start window, call, grace, and noise
SIMULATED = {
    "LANEWAY_SIMULATOR_REFUSE_RATE": "0.02",
    "LANEWAY_SIMULATOR_BUSY_RATE": "0.03",
    "LANEWAY_SIMULATOR_SILENT_BEFORE_RATE": "0.01",
    "LANEWAY_SIMULATOR_SILENT_AFTER_RATE": "0.01",
    "LANEWAY_SIMULATOR_DUPLICATE_ACK_RATE": "0.05",
    "LANEWAY_SIMULATOR_LATE_ACK_RATE": "0.02",
}
ARCHIVED_SOON = {"LANEWAY_HOT_WINDOW_S": "2", "LANEWAY_ARCHIVE_POLL_S": "0.5"}


CLOCK_OFF = "driver-mqtt-2"  # its clock is a minute slow all along; the locks' journal is the simulator's


def _wrong_clock() -> dict[str, str]:
    library = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)
    if library is None:
        return {}
    return {"LD_PRELOAD": str(library), "FAKETIME": "-60s", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What a run is made of; the seed makes the plan and the load again."""

    commands: int
    lanes: int
    unsafe: float
    faults: int
    seconds: float
    seed: int


@dataclass
class Report:
    """What a run saw."""

    accepted: int = 0
    answers: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    people: Counter[str] = field(default_factory=Counter)
    states: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)  # promises
    longest_recovery_s: float = 0.0
    verified: int = -1
    findings: str = ""

    @property
    def sound(self) -> bool:
        """All promises kept, and the checker found nothing."""
        return not self.broken and self.verified == 0


async def run(infra: Stack, database_url: str, terms: Terms, folder: Path, say: Callable[[str], None]) -> Report:
    """Make one run on running servers, in a database of its own."""
    plan = make_plan(terms.seed, terms.faults, terms.seconds)
    async with (
        Roads(infra.urls | {DATABASE_URL: database_url}) as roads,
        _system(infra, database_url, roads, folder, terms.seed) as laneway,
    ):
        lanes = await register(laneway, terms.lanes)
        await laneway.until_online("virtual", "mqtt")
        load = Load(laneway, random.Random(terms.seed), lanes.devices, terms.unsafe)
        people = People(laneway, load, random.Random(terms.seed + 1), lanes.keys)
        maker = FaultMaker(infra, roads, say)
        began = time.time()
        async with asyncio.TaskGroup() as tasks:
            at_work = tasks.create_task(people.run())
            async with asyncio.TaskGroup() as trouble:
                trouble.create_task(load.run(terms.commands, terms.seconds))
                trouble.create_task(maker.run(plan))
            at_work.cancel()
        await maker.put_right()
        await people.release_all()
        say(f"load and faults are over after {time.time() - began:.0f} s; waiting for the last commands")
        await laneway.all_ended(max(DEADLINES_S) + SETTLE_S)
        return await _look(database_url, Witnesses(laneway, lanes, load, people, maker))


@dataclass(frozen=True)
class Witnesses:
    """Who can say what happened."""

    laneway: Laneway
    lanes: Lanes
    load: Load
    people: People
    maker: FaultMaker


@asynccontextmanager
async def _system(infra: Stack, database_url: str, roads: Roads, folder: Path, seed: int) -> AsyncIterator[Laneway]:
    journal, prefix = folder / "virtual.ndjson", f"chaos{seed}"
    direct = {
        DATABASE_URL: database_url,
        "LANEWAY_TOPOLOGY_PREFIX": prefix,
        "LANEWAY_VIRTUAL_JOURNAL": str(journal),
        "LANEWAY_AGEING_S": str(AGEING_S),
    }
    direct |= ARCHIVED_SOON
    over_roads = direct | roads.settings
    simulator = direct | SIMULATED | {"LANEWAY_SIMULATOR_SEED": str(seed)}
    wanted = [service for service in services.all_services(centers=2, drivers=2) if service != services.SIMULATOR]
    await asyncio.to_thread(infra.migrate, **direct)
    try:
        await asyncio.to_thread(infra.start_services, [services.SIMULATOR], **simulator)
        await asyncio.to_thread(infra.start_services, [s for s in wanted if s.name != CLOCK_OFF], **over_roads)
        await asyncio.to_thread(
            infra.start_services, [s for s in wanted if s.name == CLOCK_OFF], **over_roads | _wrong_clock()
        )
        async with clients(infra, prefix, journal, centers=2) as laneway:
            yield laneway
    finally:
        names = [service.name for service in (*wanted, services.SIMULATOR)]
        await asyncio.to_thread(infra.stop_services, names)


async def _look(database_url: str, seen: Witnesses) -> Report:
    engine = open_engine(database_url, size=2, name="chaos")
    laneway, load, maker = seen.laneway, seen.load, seen.maker
    report = Report(accepted=len(load.accepted), answers=load.answers, people=seen.people.told)
    report.faults.update(f"{fault.kind} {fault.target}" for fault, _ in maker.made)
    try:
        columns = "command_id::text AS id, status, error_code, finished_at"
        known = await rows(
            engine,
            f"SELECT {columns} FROM point_command UNION ALL SELECT {columns} FROM point_command_history",
        )
        report.states.update(row.error_code if row.status == "SUPERSEDED" else row.status for row in known)
        facts = await load_facts(engine, None, lambda *_: None)
        report.broken = broken_promises(facts, load, seen.people, seen.lanes.limits)
        done = sorted(row.finished_at.timestamp() for row in known if row.status == "SUCCESS")
        report.longest_recovery_s = _longest_recovery(maker.made, done)
        await books_balance(engine)
    finally:
        await engine.dispose()
    process = await asyncio.create_subprocess_exec(
        str(services.script("laneway")), "verify", "--journal", str(laneway.virtual_journal),
        "--simulator", str(laneway.simulator.base_url), "--ageing", str(AGEING_S),
        env=os.environ | {DATABASE_URL: database_url},  # not as an argument: all the machine can read those
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    said, _ = await process.communicate()
    report.verified, report.findings = process.returncode or 0, said.decode()
    return report


def _longest_recovery(made: list[tuple[Fault, float]], done: list[float]) -> float:
    """The longest time from the end of a fault to the next success, among faults that work followed."""
    pauses = [min(after) - over for _, over in made if (after := [at for at in done if at >= over])]
    return max(pauses, default=0.0)


def printed(terms: Terms, report: Report) -> str:
    """The report for people."""
    share = f"{terms.unsafe:.0%} unsafe"
    lines = [
        f"seed {terms.seed}: {terms.commands} commands, {terms.lanes} lanes, {share}, {terms.faults} faults",
        f"accepted {report.accepted}, promises broken {len(report.broken)}",
        *report.broken[:40],
        f"answers  {json.dumps(dict(sorted(report.answers.items())))}",
        f"faults   {json.dumps(dict(sorted(report.faults.items())))}",
        f"people   {json.dumps(dict(sorted(report.people.items())))}",
        f"states   {json.dumps(dict(sorted(report.states.items())))}",
        f"longest recovery {report.longest_recovery_s:.1f} s",
        report.findings.rstrip(),
        "sound" if report.sound else "NOT SOUND",
    ]
    return "\n".join(lines)


def main(
    commands: Annotated[int, typer.Option(min=1)] = 20_000,
    lanes: Annotated[int, typer.Option(min=2)] = 200,
    unsafe: Annotated[float, typer.Option(min=0, max=1)] = 0.3,
    faults: Annotated[int, typer.Option(min=0)] = 100,
    seconds: Annotated[float, typer.Option(min=0, help="Length of the load; 0: 4 s per fault, at least 60 s.")] = 0,
    seed: Annotated[int, typer.Option(help="0: a new one, which is printed.")] = 0,
) -> None:
    """Put load and faults on a system of its own, and check that the books balance."""
    seed = seed or random.SystemRandom().randrange(1, 1_000_000)
    terms = Terms(
        commands=commands,
        lanes=lanes,
        unsafe=unsafe,
        faults=faults,
        seconds=seconds or max(60.0, 4.0 * faults),
        seed=seed,
    )
    typer.echo(f"seed {seed}")
    with session_stack() as infra, fresh_database(infra) as database_url:
        folder = infra.directory / "chaos"
        folder.mkdir(parents=True, exist_ok=True)
        report = asyncio.run(run(infra, database_url, terms, folder, typer.echo))
    typer.echo(printed(terms, report))
    sys.exit(0 if report.sound else 1)


if __name__ == "__main__":
    typer.run(main)
