"""`laneway-center`: serve, or migrate the schema."""

import typer

from laneway_center.app import Center, build_app
from laneway_center.settings import CenterSettings
from laneway_center.store import migrate as migrations
from laneway_center.store.database import open_engine
from laneway_shared import process
from laneway_shared.serving import listen
from laneway_shared.serving import serve as http

app = typer.Typer(
    add_completion=False, no_args_is_help=False, pretty_exceptions_enable=False, help="The Laneway center."
)


@app.callback(invoke_without_command=True)
def serve(context: typer.Context) -> None:
    """Serve until SIGTERM or SIGINT."""
    if context.invoked_subcommand is None:
        raise typer.Exit(process.run("center", CenterSettings, _serve))


@app.command()
def migrate() -> None:
    """Bring the database schema up to this release."""
    raise typer.Exit(process.run("center", CenterSettings, _migrate))


def main() -> None:
    """Entry point."""
    app()


async def _migrate(settings: CenterSettings) -> None:
    engine = open_engine(settings.database_url, size=4, name="laneway migrate", statement_timeout_s=None)
    try:
        await migrations.upgrade(engine)
    finally:
        await engine.dispose()


async def _serve(settings: CenterSettings) -> None:
    stop = process.stop_event()
    center = Center(settings)
    with listen(settings.http_host, settings.http_port) as listener:
        async with center.running():
            await http(
                build_app(center), listener, stop, patience_s=settings.stop_s, stopping=center.wakeups.followers.close
            )
