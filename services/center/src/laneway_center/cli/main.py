"""`laneway`: the operator's command. Exit codes: 0 ok, 1 refused or failed, 2 wrong usage, 3 unreachable."""

from typing import NoReturn

import typer

from laneway_center.cli import verify
from laneway_center.cli.endings import CommandGroup, run

app = typer.Typer(
    cls=CommandGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Look at Laneway and act on it. Exit codes: 0 ok, 1 refused or failed, 2 wrong usage, 3 unreachable.",
)


@app.callback()
def laneway() -> None:
    """A group even while it has one command."""


app.command(name="verify")(verify.verify)


def main() -> NoReturn:
    """Entry point."""
    run(app)
