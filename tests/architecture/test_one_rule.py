"""Each rule stands once, and where it has to stand twice, both say the same."""

import ast
import re
import sqlite3
from itertools import product
from pathlib import Path

import pytest

from laneway_center.store.tables import HOLDS_LANE
from laneway_shared.lifecycle import (
    FINAL,
    OPERATOR_TRANSITIONS,
    TRANSITIONS,
    WAITING,
    Gate,
    RetryPlace,
    Status,
    holds_lane,
)
from support.source_tree import CHECKOUT, PACKAGES, local_name, modules, parsed, written_files

# ------------------------------------------------------------------------------------ the lifecycle


def test_the_in_flight_index_is_the_rule_of_the_lifecycle() -> None:
    states = list(product(Status, Gate, RetryPlace))
    with sqlite3.connect(":memory:") as database:  # plain SQL: any database understands the predicate
        database.execute("CREATE TABLE command (status, gate, retry)")
        database.executemany("INSERT INTO command VALUES (?, ?, ?)", [tuple(map(str, state)) for state in states])
        rows = database.execute(f"SELECT ({HOLDS_LANE}) FROM command ORDER BY rowid").fetchall()
    database.close()
    said = {state: bool(holds) for state, (holds,) in zip(states, rows, strict=True)}
    assert said == {state: holds_lane(*state) for state in states}


def test_every_state_is_reached_from_pending() -> None:
    reached, frontier = {Status.PENDING}, {Status.PENDING}
    while frontier:
        frontier = {target for state in frontier for target in TRANSITIONS.get(state, ())} - reached
        reached |= frontier
    assert reached == set(Status)


def test_exactly_the_final_states_have_no_way_out() -> None:
    assert set(TRANSITIONS) == set(Status) - FINAL
    assert all(TRANSITIONS.values())
    assert not any(state in targets for state, targets in TRANSITIONS.items())
    assert set(TRANSITIONS) >= WAITING


def test_an_operator_acts_only_where_a_command_has_stopped() -> None:
    assert set(OPERATOR_TRANSITIONS) <= FINAL | {Status.MANUAL_REVIEW}


# ---------------------------------------------------------------------------------- SQL statements

STORE = next(package for package in PACKAGES if package.name == "laneway_center") / "store"
QUERIES = "\n".join(file.read_text(encoding="utf-8") for file in sorted(STORE.glob("*.sql")))
STATEMENT = re.compile(r"^-- name: (\w+)\n(.*)\n", re.MULTILINE)


def test_every_statement_says_what_it_does() -> None:
    found = STATEMENT.findall(QUERIES)
    assert found
    assert not [name for name, below in found if not re.match(r"-- \S.*\w", below)]


def test_statements_and_their_uses_match() -> None:
    named = [name for name, _ in STATEMENT.findall(QUERIES)]
    assert len(named) == len(set(named))
    assert _statements_used() == set(named)


def _statements_used() -> set[str]:
    used = set()
    for module in modules("laneway_center"):
        for node in ast.walk(parsed(module)):
            match node:
                case ast.Subscript(value=ast.Name(id="SQL"), slice=ast.Constant(value=str(name))):
                    used.add(name)
                case ast.Subscript(value=ast.Name(id="SQL")):
                    pytest.fail(f"{local_name(module)}:{node.lineno} takes a statement by a computed name")
    return used


# ----------------------------------------------------------------------------------------- modules

LINES = 460  # about 400 is the house's measure; the state table of lifecycle.py needs a few more
EMPTY_NAMES = {"base", "common", "helper", "helpers", "manager", "misc", "shared", "util", "utils"}
PURE = ("constraints", "errors", "judgement", "lifecycle", "messages", "topology")
IMPURE_CALLS = {"open", "print", "input", "now", "utcnow", "today", "random", "sleep"}


@pytest.mark.parametrize("module", modules(), ids=local_name)
def test_a_module_introduces_itself_and_is_short(module: Path) -> None:
    lines = len(module.read_text(encoding="utf-8").splitlines())
    assert lines <= LINES, f"{lines} lines: split it where the reader's question changes"
    assert ast.get_docstring(parsed(module)), "its first line says what it is for"


def test_no_module_or_package_has_a_name_without_content() -> None:
    named = {local_name(part) for module in modules() for part in (module.with_suffix(""), module.parent)}
    assert not [name for name in named if Path(name).name in EMPTY_NAMES]


@pytest.mark.parametrize("name", PURE)
def test_rules_and_messages_ask_no_clock_and_touch_nothing(name: str) -> None:
    """What the import contract can't see: built-in functions and the clock inside `datetime`."""
    (module,) = (
        path for path in modules("laneway_shared") if path.stem == name and path.parent.name.endswith("shared")
    )
    called = {
        call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        for call in ast.walk(parsed(module))
        if isinstance(call, ast.Call)
    }
    assert not called & IMPURE_CALLS


# -------------------------------------------------------------------------------- what is published

A_PRIVATE_PLACE = re.compile(rb"(?<![\w.:/-])/(?:home|root|Users|work|workspaces?|mnt)/")


def test_no_file_names_a_folder_of_the_machine_it_was_written_on() -> None:
    assert not [local_name(path) for path in written_files() if A_PRIVATE_PLACE.search(path.read_bytes())]


def test_locked_requirements_name_no_index() -> None:
    lock = (CHECKOUT / "requirements.lock").read_text(encoding="utf-8")
    assert "--hash=sha256:" in lock
    assert not re.search(r"https?://|index-url|find-links", lock)
