"""What a written value must satisfy. The center asks before it stores, the driver again before it calls."""

import math
import re
from fractions import Fraction

import msgspec

from laneway_shared.messages import VALUE_LIMIT, Constraints

_INT = re.compile(r"[+-]?[0-9]+")
_FLOAT = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,3})?")
_WHOLE = 2**53  # up to here a float is the whole number it shows
_SHOWN = 40  # characters of a value in a sentence
_BOOL = frozenset({"true", "false", "0", "1"})


def violation(value: str, constraints: Constraints) -> str | None:
    """Why the value may not be written, as one sentence; None when it may.

    Numbers are compared exactly as written, so that 0.3 is a multiple of step 0.1. `enum` compares texts.
    """
    if len(value.encode(errors="surrogatepass")) > VALUE_LIMIT:
        return f"the value is longer than {VALUE_LIMIT} bytes"
    if constraints.value_type in ("int", "float"):
        fault = _number(value, constraints)
    elif constraints.value_type == "bool":
        fault = None if value.lower() in _BOOL else f"{_short(value)} is not true, false, 1 or 0"
    elif constraints.value_type == "json":
        fault = _object(value)
    elif constraints.value_type == "string":
        fault = None
    else:
        fault = f"unknown value type {constraints.value_type!r}"
    if fault is None and constraints.enum is not None and value not in constraints.enum:
        return f"{_short(value)} is none of {', '.join(constraints.enum)}"
    return fault


def _number(value: str, constraints: Constraints) -> str | None:
    whole = constraints.value_type == "int"
    if not (_INT if whole else _FLOAT).fullmatch(value) or not math.isfinite(float(value)):
        return f"{_short(value)} is not {'a whole number' if whole else 'a number'}"
    if constraints.min is None and constraints.max is None and not constraints.step:
        return None
    number = int(value) if whole else Fraction(value)
    if constraints.min is not None and number < _exact(constraints.min):
        return f"{_short(value)} is less than {constraints.min:g}"
    if constraints.max is not None and number > _exact(constraints.max):
        return f"{_short(value)} is more than {constraints.max:g}"
    if constraints.step:
        start = _exact(constraints.min or 0.0)
        if (number - start) % _exact(constraints.step):
            return f"{_short(value)} is not a step of {constraints.step:g} from {constraints.min or 0:g}"
    return None


def _exact(bound: float) -> Fraction | int:
    """The bound as it was written; whole ones as integers, which compare faster."""
    return int(bound) if float(bound).is_integer() and abs(bound) <= _WHOLE else Fraction(repr(float(bound)))


def _object(value: str) -> str | None:
    try:
        document = msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        return f"not JSON: {error}"
    return None if isinstance(document, dict) else "not a JSON object"


def _short(value: str) -> str:
    return repr(value if len(value) <= _SHOWN else value[: _SHOWN - 1] + "…")
