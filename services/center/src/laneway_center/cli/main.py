"""`laneway`: the operator's command. Exit codes: 0 ok, 1 refused or failed, 2 wrong usage, 3 unreachable."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand

from laneway_center import __version__
from laneway_center.cli.endings import CommandGroup, run

GROUPS: Mapping[str, str] = {
    "command": "Submit, show, follow, list and cancel commands.",
    "lane": "Look at lanes: explain, hold, release, skip.",
    "dead": "Look at dead letters; send their commands again.",
    "review": "Decide commands whose outcome nobody knows.",
    "driver": "Drivers and ack-listeners, as they last said.",
    "registry": "Drivers, devices and points as one document.",
    "audit": "What operators did, and why.",
    "verify": "Check timelines and what devices did against the rules.",
    "topology": "RabbitMQ's exchanges, queues and bindings.",
    "db": "The database's schema.",
}
"""Each is the module of that name here; its `app` is read only when it is asked for, so that help comes at once."""


class LazyGroup(CommandGroup):
    """A group whose commands are imported when they are used, not when they are listed."""

    _listing = False

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - the signature is typer's
        """All names, in the order of the help."""
        return list(GROUPS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002 - the signature is typer's
        """Import one; while they are listed, its name and help will do."""
        if cmd_name not in GROUPS:
            return None
        if self._listing:
            return TyperCommand(name=cmd_name, help=GROUPS[cmd_name])
        if cmd_name not in self.commands:
            command = typer.main.get_command(import_module(f"laneway_center.cli.{cmd_name}").app)
            command.name = cmd_name
            self.commands[cmd_name] = command
        return self.commands[cmd_name]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List them."""
        with self._as_a_list():
            super().format_commands(ctx, formatter)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Complete a name."""
        with self._as_a_list():
            return super().shell_complete(ctx, incomplete)

    @contextmanager
    def _as_a_list(self) -> Iterator[None]:
        self._listing = True
        try:
            yield
        finally:
            self._listing = False


app = typer.Typer(
    cls=LazyGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Look at Laneway and act on it. Exit codes: 0 ok, 1 refused or failed, 2 wrong usage, 3 unreachable.",
)


def _tell_version(asked: bool) -> None:
    if asked:
        typer.echo(f"laneway {__version__}")
        raise typer.Exit


@app.callback()
def laneway(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_tell_version, is_eager=True, help="Say the version, and end.")
    ] = False,
) -> None:
    """Makes it a group; its commands are found by name."""


def main() -> NoReturn:
    """Entry point."""
    run(app)
