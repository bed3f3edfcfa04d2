"""Templates such as `ydlink/{sn}/down`: which variables they know, and how they are filled in and read back."""

import functools
import re
import string
from collections.abc import Mapping

VARIABLES = frozenset(
    {"tenant", "model", "sn", "point", "commandId", "attempt", "value", "op", "validUntilMs"},
)
"""What a payload template may name."""
TOPIC_VARIABLES = frozenset({"tenant", "model", "sn", "point", "commandId", "attempt", "op"})
"""What a topic template may name: names only, nothing a caller writes freely."""
CORRELATION_VARIABLES = frozenset({"commandId", "attempt"})
"""What a device echoes."""

Scalar = str | int | None

_READ_BACK = {
    "commandId": r"(?P<commandId>[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12})",
    "attempt": r"(?P<attempt>[1-9][0-9]{0,8})",  # fits the database's integer
}


@functools.lru_cache(maxsize=1024)
def parts(template: str) -> tuple[tuple[str, str | None], ...]:
    """The template as pairs of literal text and the variable behind it (None at the end).

    Raises:
        ValueError: braces that don't match, or something other than a plain name between them.
    """
    found: list[tuple[str, str | None]] = []
    for literal, name, spec, conversion in string.Formatter().parse(template):
        if name is not None and (spec or conversion or not name.isidentifier()):
            raise ValueError(f"{template!r}: between braces stands one variable's name and nothing else")
        found.append((literal, name))
    return tuple(found)


def check(template: str, allowed: frozenset[str]) -> str:
    """The template itself, if it is one.

    Raises:
        ValueError: it names a variable that isn't in `allowed`.
    """
    for _, name in parts(template):
        if name is not None and name not in allowed:
            raise ValueError(f"{template!r} names {{{name}}}; known here: {', '.join(sorted(allowed))}")
    return template


def fill(template: str, variables: Mapping[str, Scalar]) -> str:
    """The text with all variables in place; None is written as nothing.

    Raises:
        KeyError: the name of a variable without a value.
    """
    pieces: list[str] = []
    for literal, name in parts(template):
        pieces.append(literal)
        if name is not None:
            value = variables[name]
            pieces.append("" if value is None else str(value))
    return "".join(pieces)


def fill_leaf(template: str, variables: Mapping[str, Scalar]) -> Scalar:
    """Like `fill`, but a template that is exactly one variable keeps its kind: number, text or null.

    Raises:
        KeyError: the name of a variable without a value.
    """
    pairs = parts(template)
    if len(pairs) == 1 and pairs[0][0] == "" and pairs[0][1] is not None:
        return variables[pairs[0][1]]
    return fill(template, variables)


@functools.lru_cache(maxsize=1024)
def reader(pattern: str) -> re.Pattern[str]:
    """A regular expression that finds `commandId` and `attempt` in what a device echoed by this pattern."""
    expression = "".join(re.escape(literal) + (_READ_BACK[name] if name else "") for literal, name in parts(pattern))
    return re.compile(expression)
