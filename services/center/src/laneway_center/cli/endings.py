"""How commands end: exit codes, and one line of reason instead of a traceback."""

import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

from laneway_center.store.database import DatabaseAwayError, DatabaseRefusedError
from laneway_center.verify.journals import JournalAwayError, JournalUnreadableError
from laneway_shared.errors import LanewayError

OK, FAILED, USAGE, UNREACHABLE = 0, 1, 2, 3
_CODES: Mapping[type[LanewayError], int] = {
    DatabaseAwayError: UNREACHABLE,
    DatabaseRefusedError: UNREACHABLE,
    JournalAwayError: UNREACHABLE,
    JournalUnreadableError: USAGE,
}


class CommandGroup(TyperGroup):
    """Turns the errors that Laneway knows into a line and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except LanewayError as error:
            sys.stderr.write(f"laneway: {error.code}: {error.message}\n")
            raise typer.Exit(_CODES.get(type(error), FAILED)) from error


def run(app: Callable[[], None]) -> NoReturn:
    """Run the whole command; what comes out of it is a bug, and is told with its place."""
    try:
        app()
    except Exception as bug:  # noqa: BLE001 - the last word
        place = traceback.extract_tb(bug.__traceback__)[-1]
        sys.stderr.write(f"laneway: a bug, please report it: {bug!r} in {place.filename}, line {place.lineno}\n")
        sys.exit(FAILED)
    sys.exit(OK)
