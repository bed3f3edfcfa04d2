"""Loads the .sql files of this package: `SQL["enqueue"]` is the statement of that name."""

import re
from importlib.resources import files

from sqlalchemy import Table, TextClause, text

from laneway_center.store.tables import point_command, point_command_event

_NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)


def _columns(table: Table) -> str:
    return ", ".join(column.name for column in table.columns)


_LISTS = {"{command_columns}": _columns(point_command), "{event_columns}": _columns(point_command_event)}
"""What a statement may say instead of naming each column of a table, so that none is forgotten."""


def _load(source: str) -> dict[str, TextClause]:
    for name, columns in _LISTS.items():
        source = source.replace(name, columns)
    parts = _NAME.split(source)
    pairs = zip(parts[1::2], parts[2::2], strict=True)
    return {name: text(_without_comments(body).rstrip().rstrip(";")) for name, body in pairs}


def _without_comments(body: str) -> str:
    return "\n".join(line for line in body.splitlines() if not line.lstrip().startswith("--"))


SQL = {
    name: statement
    for file in sorted(files(__package__).iterdir(), key=lambda each: each.name)
    if file.name.endswith(".sql")
    for name, statement in _load(file.read_text(encoding="utf-8")).items()
}
