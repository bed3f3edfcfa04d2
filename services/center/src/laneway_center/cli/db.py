"""`laneway db`: the schema of the center's database."""

import asyncio

import typer

from laneway_center.cli.database import DATABASE_URL, DatabaseOption, opened
from laneway_center.cli.endings import FAILED, OK, group
from laneway_center.cli.options import OutputOption
from laneway_center.cli.output import Output, progress, say, show
from laneway_center.store.migrate import Revisions, revisions
from laneway_center.store.migrate import upgrade as migrate

app = group("The database's schema.")


@app.command()
def upgrade(*, database_url: DatabaseOption = DATABASE_URL, output: OutputOption = Output.TABLE) -> None:
    """Bring the schema up to this release; several at once are safe."""
    with progress() as bars:
        bars.add_task("upgrading", total=None)
        before, after = asyncio.run(_upgraded(database_url))
    if output is Output.JSON:
        show({"before": before.current, "now": after.current})
    elif before.current == after.current:
        say(f"Nothing to do: the schema is at {after.current} already.")
    else:
        say(f"The schema is at {after.current} now; it was {_named(before.current)}.")


@app.command()
def current(*, database_url: DatabaseOption = DATABASE_URL, output: OutputOption = Output.TABLE) -> None:
    """Say at which revision the schema is. Exit code 1: not at this release's."""
    there = asyncio.run(_current(database_url))
    if output is Output.JSON:
        show({"current": there.current, "release": there.release, "upToDate": there.is_current})
    elif there.is_current:
        say(f"The schema is at {there.current}, as this release needs it.")
    else:
        say(f"The schema is {_named(there.current)}; this release needs {there.release}: laneway db upgrade")
    raise typer.Exit(OK if there.is_current else FAILED)


def _named(revision: str | None) -> str:
    return "empty" if revision is None else f"at {revision}"


async def _current(url: str) -> Revisions:
    async with opened(url, "laneway db") as engine:
        return await revisions(engine)


async def _upgraded(url: str) -> tuple[Revisions, Revisions]:
    async with opened(url, "laneway db", patient=True) as engine:
        before = await revisions(engine)
        await migrate(engine)
        return before, await revisions(engine)
