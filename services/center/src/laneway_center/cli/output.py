"""Where commands write: results to standard output, progress and reasons to standard error."""

import os
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from itertools import zip_longest
from pathlib import Path
from threading import Timer
from typing import Any, TypeVar

import orjson
from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from laneway_center.cli.endings import UsageError

GAP = "  "
BARS_AFTER_S = 2.0
INDENT = "    "  # of the second line of a row
EntryT = TypeVar("EntryT")


class Output(StrEnum):
    """Forms of a result."""

    TABLE = "table"
    JSON = "json"


@dataclass(frozen=True)
class Column:
    """A column of a table: what stands in a row under `key`.

    On a terminal that is too narrow a column that `folds` takes several lines, one that may be `cut` ends with …, but
    keeps `least` characters; columns for which there is no room then stand on a second line. Ids and numbers are whole.
    """

    title: str
    key: str
    folds: bool = False
    cut: bool = False
    right: bool = False
    least: int = 4


def console() -> Console:
    """Standard output as wide as the terminal, 80 columns without one. NO_COLOR is respected."""
    return Console(highlight=False, markup=False, emoji=False)


def is_for_eyes() -> bool:
    """Whether a width is to be kept: on a terminal, or where COLUMNS says one."""
    return sys.stdout.isatty() or bool(os.environ.get("COLUMNS"))


def say(text: str) -> None:
    """A line of result."""
    sys.stdout.write(f"{text}\n")


def say_sentence(text: str) -> None:
    """A sentence of result, folded between words on a terminal."""
    if is_for_eyes():
        text = textwrap.fill(text, console().width, break_long_words=False, break_on_hyphens=False)
    say(text)


def note(text: str) -> None:
    """A line beside the result, for a person."""
    sys.stderr.write(f"{text}\n")


def show(document: Any) -> None:
    """The result as one JSON document."""
    sys.stdout.write(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode() + "\n")


def show_table(columns: Sequence[Column], rows: Sequence[Mapping[str, Any]]) -> None:
    """Rows for a reader. In a pipe nothing is cut or folded: one row is one line, for grep and awk.

    A column in which nothing stands is left out.
    """
    cells = [{column.key: cell(row.get(column.key)) for column in columns} for row in rows]
    filled = [column for column in columns if not cells or any(row[column.key] for row in cells)]
    if is_for_eyes():
        _fit(filled, cells)
    else:
        sys.stdout.writelines(f"{line}\n" for line in _lines(filled, cells))


def write_file(path: Path, document: bytes) -> None:
    """A result that goes into a file.

    Raises:
        UsageError: it can't be written there.
    """
    try:
        path.write_bytes(document)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from None


def cell(value: Any) -> str:
    """A value as it stands in a table."""
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case list() | tuple():
            return ", ".join(map(cell, value))
        case dict():
            return orjson.dumps(value).decode()
        case float():
            return f"{value:g}"
        case _:
            return " ".join(str(value).split())


def _fit(columns: Sequence[Column], cells: Sequence[Mapping[str, str]]) -> None:
    """Print them within the terminal's width: a row takes several lines, indented, where its columns need them."""
    screen = console()
    decks = list(_decks(columns, cells, screen.width))
    for deck in decks:
        titles = (_padded(column.title, width, column) for column, width in deck.widths)
        screen.print(Text(deck.indent + GAP.join(titles).rstrip(), style="bold"), soft_wrap=True)
    for row in cells:
        for deck in decks:
            broken = [_broken(row[column.key], width, column, screen) for column, width in deck.widths]
            for line in zip_longest(*broken, fillvalue=""):
                padded = (_padded(part, width, column) for part, (column, width) in zip(line, deck.widths, strict=True))
                said = GAP.join(padded).rstrip()
                if said or not deck.indent:
                    say(deck.indent + said)


@dataclass(frozen=True)
class _Deck:
    """Columns that share a line, each with its width."""

    widths: Sequence[tuple[Column, int]]
    indent: str


def _decks(columns: Sequence[Column], cells: Sequence[Mapping[str, str]], width: int) -> Iterator[_Deck]:
    """As many columns to a line as fit with the least they need; what is left of it goes to those that need more."""
    most = {column.key: max([cell_len(column.title), *_widths(column, cells)]) for column in columns}
    least = {column.key: _least(column, most[column.key]) for column in columns}
    lines: list[list[Column]] = [[]]
    left = width
    for column in columns:
        if lines[-1] and least[column.key] > left:
            lines.append([])
            left = width - len(INDENT)
        lines[-1].append(column)
        left -= least[column.key] + len(GAP)
    for at, line in enumerate(lines):
        indent = INDENT if at else ""
        left = width - len(indent) - sum(least[column.key] + len(GAP) for column in line) + len(GAP)
        widths = {}
        poorest = sorted(line, key=lambda column: most[column.key] - least[column.key])
        for done, column in enumerate(poorest):
            more = min(most[column.key] - least[column.key], max(left, 0) // (len(line) - done))
            widths[column.key] = least[column.key] + more
            left -= more
        yield _Deck([(column, widths[column.key]) for column in line], indent)


def _least(column: Column, most: int) -> int:
    """What neither folds nor may be cut keeps its width, whatever becomes of the others."""
    return min(most, max(column.least, cell_len(column.title))) if column.folds or column.cut else most


def _broken(text: str, width: int, column: Column, screen: Console) -> list[str]:
    """A cell as the lines it takes."""
    if cell_len(text) <= width:
        return [text]
    if column.folds:
        return [line.plain.rstrip() for line in Text(text).wrap(screen, width, overflow="fold")]
    cut = Text(text)
    cut.truncate(width, overflow="ellipsis")
    return [cut.plain]


def _padded(text: str, width: int, column: Column) -> str:
    fill = " " * (width - cell_len(text))
    return fill + text if column.right else text + fill


def _lines(columns: Sequence[Column], cells: Sequence[Mapping[str, str]]) -> Iterator[str]:
    widths = [max([cell_len(column.title), *_widths(column, cells)]) for column in columns]
    titles = {column.key: column.title for column in columns}
    for row in (titles, *cells):
        padded = (_padded(row[column.key], width, column) for column, width in zip(columns, widths, strict=True))
        yield GAP.join(padded).rstrip()


def _widths(column: Column, cells: Sequence[Mapping[str, str]]) -> list[int]:
    return [cell_len(row[column.key]) for row in cells]


def show_facts(facts: Mapping[str, Any]) -> None:
    """One thing for a reader: a name and what stands there, line by line; what is missing is left out."""
    told = {name: cell(value) for name, value in facts.items() if cell(value)}
    width = max(map(len, told), default=0)
    if not is_for_eyes():
        for name, value in told.items():
            say(f"{name.ljust(width)}{GAP}{value}")
        return
    grid = Table.grid(padding=(0, len(GAP)))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in told.items():
        grid.add_row(name, value)
    console().print(grid)


def clock(instant: str | None) -> str:
    """An instant of the API, to the second: `2026-01-31 17:01:25Z`."""
    return "" if instant is None else f"{datetime.fromisoformat(instant).astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"


def age(instant: str | None, now: datetime | None = None) -> str:
    """How long ago, roughly: `4s`, `12m`, `3h`, `5d`; with a minus what is still to come."""
    if instant is None:
        return ""
    seconds = ((now or datetime.now(UTC)) - datetime.fromisoformat(instant)).total_seconds()
    return span(seconds)


def span(seconds: float | None) -> str:
    """A duration, roughly: `4s`, `12m`, `3h`, `5d`."""
    if seconds is None:
        return ""
    sign, left = ("-", -seconds) if seconds < 0 else ("", seconds)
    for unit, length, most in (("s", 1, 100), ("m", 60, 100), ("h", 3600, 100)):
        if left < most * length:
            return f"{sign}{round(left / length)}{unit}"
    return f"{sign}{round(left / 86_400)}d"


def gathered(what: str, entries: Iterable[EntryT]) -> list[EntryT]:
    """All entries of a list that comes page by page, under a bar."""
    found = []
    with progress() as bars:
        bar = bars.add_task(what, total=None)
        for entry in entries:
            found.append(entry)
            bars.advance(bar)
    return found


@contextmanager
def progress() -> Iterator[Progress]:
    """Bars on a terminal, for what takes longer than two seconds; nothing in a pipe."""
    errors = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), MofNCompleteColumn(), TimeElapsedColumn())
    bars = Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal)
    if not errors.is_terminal:
        yield bars
        return
    late = Timer(BARS_AFTER_S, bars.start)
    late.daemon = True
    late.start()
    try:
        yield bars
    finally:
        late.cancel()
        late.join()  # it may just be at it
        bars.stop()
