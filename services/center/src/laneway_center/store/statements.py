"""Loads the .sql files of this package: `SQL["enqueue"]` is the statement of that name."""

import re
from importlib.resources import files

from sqlalchemy import TextClause, text

_NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)


def _load(source: str) -> dict[str, TextClause]:
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
