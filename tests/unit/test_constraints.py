from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laneway_shared.constraints import violation
from laneway_shared.messages import Constraints


@pytest.mark.parametrize(
    ("value", "constraints"),
    [
        ("anything", {}),
        ("7", {"value_type": "int", "min": 0, "max": 10}),
        ("-5", {"value_type": "int"}),
        ("0.3", {"value_type": "float", "step": 0.1}),
        ("20.5", {"value_type": "float", "min": 20, "max": 21, "step": 0.5}),
        ("1e2", {"value_type": "float", "max": 100}),
        ("TRUE", {"value_type": "bool"}),
        ('{"a": [1]}', {"value_type": "json"}),
        ("auto", {"enum": ["auto", "heat"]}),
    ],
)
def test_allowed(value: str, constraints: dict[str, Any]) -> None:
    assert violation(value, Constraints(**constraints)) is None


@pytest.mark.parametrize(
    ("value", "constraints", "reason"),
    [
        ("101", {"value_type": "int", "max": 100}, "'101' is more than 100"),
        ("-1", {"value_type": "int", "min": 0}, "'-1' is less than 0"),
        ("text", {"value_type": "int"}, "'text' is not a whole number"),
        ("1.5", {"value_type": "int"}, "'1.5' is not a whole number"),
        ("1_0", {"value_type": "int"}, "'1_0' is not a whole number"),
        ("٣", {"value_type": "int"}, "'٣' is not a whole number"),
        ("1\n", {"value_type": "int"}, "'1\\n' is not a whole number"),
        ("nan", {"value_type": "float"}, "'nan' is not a number"),
        ("1e999999999", {"value_type": "float"}, "'1e999999999' is not a number"),
        ("", {"value_type": "float"}, "'' is not a number"),
        ("0.35", {"value_type": "float", "step": 0.1}, "'0.35' is not a step of 0.1 from 0"),
        ("6", {"value_type": "int", "min": 1, "step": 2}, "'6' is not a step of 2 from 1"),
        ("yes", {"value_type": "bool"}, "'yes' is not true, false, 1 or 0"),
        ("[1]", {"value_type": "json"}, "not a JSON object"),
        ("dry", {"enum": ["auto", "heat"]}, "'dry' is none of auto, heat"),
        ("x" * 5000, {}, "the value is longer than 4096 bytes"),
        ("x", {"value_type": "colour"}, "unknown value type 'colour'"),
    ],
)
def test_refused(value: str, constraints: dict[str, Any], reason: str) -> None:
    assert violation(value, Constraints(**constraints)) == reason


@given(value=st.text(max_size=50), kind=st.sampled_from(["string", "int", "float", "bool", "json"]))
def test_any_text_gets_an_answer(value: str, kind: str) -> None:
    violation(value, Constraints(value_type=kind, min=0, max=1e6, step=0.25, enum=["1"]))


@given(count=st.integers(-1000, 1000), step=st.sampled_from(["0.1", "0.25", "3", "0.01"]))
def test_every_multiple_of_the_step_is_allowed_as_it_is_written(count: int, step: str) -> None:
    written = Fraction(step) * count
    text = f"{float(written):.2f}"
    assert violation(text, Constraints(value_type="float", step=float(step))) is None


@given(number=st.integers(-(10**6), 10**6), low=st.integers(-1000, 1000), high=st.integers(-1000, 1000))
def test_bounds_are_inclusive(number: int, low: int, high: int) -> None:
    allowed = violation(str(number), Constraints(value_type="int", min=low, max=high)) is None
    assert allowed == (low <= number <= high)
