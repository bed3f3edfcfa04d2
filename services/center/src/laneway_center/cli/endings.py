"""How commands end: exit codes, and one line of reason instead of a traceback."""

import logging
import os
import re
import sys
import traceback
from collections.abc import Mapping
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

from laneway_shared.errors import LanewayError

OK, FAILED, USAGE, UNREACHABLE, INTERRUPTED = 0, 1, 2, 3, 130
EXIT_CODES: Mapping[str, int] = {
    "BROKER_AWAY": UNREACHABLE,
    "CENTER_AWAY": UNREACHABLE,
    "DATABASE_AWAY": UNREACHABLE,
    "DATABASE_REFUSED": UNREACHABLE,
    "JOURNAL_AWAY": UNREACHABLE,
    "JOURNAL_UNREADABLE": USAGE,
    "LETTERS_UNREADABLE": USAGE,
    "MANAGEMENT_AWAY": UNREACHABLE,
    "SETTINGS_INVALID": USAGE,
    "USAGE": USAGE,
}
"""By the error's code; all others are `FAILED`. Not by class: naming those would import all that raises them."""


class UsageError(LanewayError):
    """What was asked for makes no sense."""

    code = "USAGE"


class CommandGroup(TyperGroup):
    """Turns the errors that Laneway knows into a line and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except LanewayError as error:
            told(error)
            raise typer.Exit(EXIT_CODES.get(error.code, FAILED)) from error
        except BaseExceptionGroup as group:
            known = _first_known(group)
            if known is None:
                raise
            told(known)
            raise typer.Exit(EXIT_CODES.get(known.code, FAILED)) from group


def group(says: str) -> typer.Typer:
    """A group of commands, to be filled."""
    return typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None, help=says)


def told(error: LanewayError) -> None:
    """Say an error in one line on standard error."""
    code = getattr(error, "problem_code", error.code)  # what the center said, where it was the center
    sys.stderr.write(f"laneway: {code}: {' '.join(error.message.split())}\n")


def _first_known(group: BaseException) -> LanewayError | None:
    """The error that Laneway knows, if a group holds nothing else."""
    if isinstance(group, BaseExceptionGroup):
        found = [_first_known(each) for each in group.exceptions]
        return None if None in found else found[0]
    return group if isinstance(group, LanewayError) else None


def run(app: typer.Typer) -> NoReturn:
    """Run the whole command; what comes out of it is a bug, and is told with its place."""
    logging.disable()  # what libraries warn of reaches the user as an error, in words
    try:
        ended = typer.main.get_command(app).main(prog_name="laneway", standalone_mode=False)
        sys.stdout.flush()
    except typer.TyperException as error:
        _tell_usage(error)
        sys.exit(error.exit_code)
    except typer.Abort:
        sys.exit(FAILED)
    except BrokenPipeError:
        _drop_output()  # whoever read has gone (`laneway … | head`)
        sys.exit(FAILED)
    except OSError as error:
        sys.stderr.write(f"laneway: OUTPUT: {error.strerror or error}\n")
        _drop_output()
        sys.exit(FAILED)
    except Exception as bug:  # noqa: BLE001 - the last word
        place = traceback.extract_tb(bug.__traceback__)[-1]
        sys.stderr.write(f"laneway: a bug, please report it: {bug!r} in {place.filename}, line {place.lineno}\n")
        sys.exit(FAILED)
    sys.exit(ended if isinstance(ended, int) else OK)


def _drop_output() -> None:
    """What couldn't be written can't be written at the interpreter's end either."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _tell_usage(error: typer.TyperException) -> None:
    said = _with_variables(error.format_message())
    if not said or "\n" in said:  # a group without a command: its help
        sys.stderr.write(f"{said}\n" if said else "")
        return
    place = getattr(getattr(error, "ctx", None), "command_path", "laneway")
    end = "" if said.endswith((".", "?")) else "."
    sys.stderr.write(f"laneway: USAGE: {said}{end} See {place} --help\n")


def _with_variables(said: str) -> str:
    """An option that several variables set: typer names them as a list of Python."""
    return re.sub(r"\(env var: '\[(.*?)\]'\)", lambda found: f"(env var: {found[1].replace(chr(39), '')})", said)
