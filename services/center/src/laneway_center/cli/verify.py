"""`laneway verify`: check what happened against the rules."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress

from laneway_center.cli.database import DATABASE_URL, DatabaseOption, opened
from laneway_center.cli.endings import FAILED, OK
from laneway_center.cli.output import Output, console, is_for_eyes, progress, say
from laneway_center.cli.verify_report import Report, as_json, as_lines, as_table
from laneway_center.verify import rules
from laneway_center.verify.facts import Facts, Journal
from laneway_center.verify.findings import Terms
from laneway_center.verify.journals import from_file, from_simulator
from laneway_center.verify.snapshot import load

app = typer.Typer(add_completion=False, rich_markup_mode=None)
LONGEST_S = 1e8  # seconds


def _simulator_urls(urls: list[str]) -> list[str]:
    for url in urls:
        if not url.startswith(("http://", "https://")):
            raise typer.BadParameter(f"{url} doesn't begin with http:// or https://")
    return urls


@dataclass(frozen=True, kw_only=True)
class _Sources:
    """Where the facts are."""

    database_url: str
    tenant: int | None
    simulators: Sequence[str]
    files: Sequence[Path]


@app.command(name="verify")
def verify(
    *,
    database_url: DatabaseOption = DATABASE_URL,
    simulator: Annotated[
        list[str] | None,
        typer.Option(
            callback=lambda urls: _simulator_urls(urls or []),
            metavar="URL",
            help="A simulator whose journal counts; repeatable.",
        ),
    ] = None,
    journal: Annotated[
        list[Path] | None,
        typer.Option(exists=True, dir_okay=False, metavar="FILE", help="A journal of the virtual adapter; repeatable."),
    ] = None,
    slack: Annotated[
        float, typer.Option(min=0, max=LONGEST_S, metavar="S", help="Seconds past its bound before a command is late.")
    ] = 15,
    clock_tolerance: Annotated[
        float,
        typer.Option(
            min=0, max=LONGEST_S, metavar="S", help="Seconds the clocks of journals may be off the database's."
        ),
    ] = 1,
    ageing: Annotated[
        float | None,
        typer.Option(
            envvar="LANEWAY_AGEING_S",
            min=0.001,
            max=LONGEST_S,
            metavar="S",
            help="Seconds of waiting that raise a priority by one; without it only what holds for any is judged.",
        ),
    ] = None,
    tenant: Annotated[int | None, typer.Option(metavar="N", help="Only this tenant; without it all.")] = None,
    output: Annotated[Output, typer.Option(help="Form of the result.")] = Output.TABLE,
    most: Annotated[int, typer.Option(min=0, metavar="N", help="Findings shown per rule, at most.")] = 20,
) -> None:
    """Check timelines and what devices did against the rules.

    Exit code 0: no rule is broken; 1: findings. The system may be running or finished. Give the journals of all
    devices of a driver service, or of none of them.
    """
    sources = _Sources(
        database_url=database_url,
        tenant=tenant,
        simulators=tuple(dict.fromkeys(url.rstrip("/") for url in simulator or ())),
        files=tuple(dict.fromkeys(path.resolve() for path in journal or ())),
    )
    terms = Terms(
        slack=timedelta(seconds=slack),
        clock_tolerance=timedelta(seconds=clock_tolerance),
        ageing=None if ageing is None else timedelta(seconds=ageing),
    )
    with progress() as bars:
        facts = asyncio.run(_facts(sources, bars))
        judging = bars.add_task("rules", total=len(rules.RULES))
        verdicts = {}
        for rule in rules.RULES:
            verdicts[rule.name] = rules.judged(rule, facts, terms)
            bars.advance(judging)
    report = Report(facts=facts, verdicts=verdicts, most=most)
    if output is Output.JSON:
        typer.echo(as_json(report))
    elif is_for_eyes():
        as_table(report, console())
    else:
        for line in as_lines(report):
            say(line)
    raise typer.Exit(OK if report.is_sound else FAILED)


async def _facts(sources: _Sources, bars: Progress) -> Facts:
    """The database first: a journal read afterwards holds everything that led to what the database says."""
    tasks = {}

    def show(what: str, done: int, total: int | None = None) -> None:
        if what not in tasks:
            tasks[what] = bars.add_task(what, total=total)
        bars.update(tasks[what], completed=done)

    async with opened(sources.database_url, "laneway verify") as engine:
        facts = await load(engine, sources.tenant, show)
    journals: list[Journal] = [await from_simulator(url, show) for url in sources.simulators]
    journals += [from_file(path, show) for path in sources.files]
    return replace(facts, journals=tuple(journals))
