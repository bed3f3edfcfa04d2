"""Where commands write: results to standard output, progress and reasons to standard error."""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


class Output(StrEnum):
    """Forms of a result."""

    TABLE = "table"
    JSON = "json"


def console() -> Console:
    """Standard output as wide as the terminal, 80 columns without one. NO_COLOR is respected."""
    return Console(highlight=False, markup=False, emoji=False)


@contextmanager
def progress() -> Iterator[Progress]:
    """Bars on a terminal; nothing in a pipe."""
    errors = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as bars:
        yield bars
