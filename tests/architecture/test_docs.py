"""What the pages name is there: tests, links, error codes, metrics."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.source_tree import CHECKOUT, local_name, modules, parsed, written_files

PAGES = sorted(path for path in written_files() if path.suffix == ".md")
TEST = re.compile(r"`(?:tests/)?([\w/]+\.py)?::(test_\w+)`")
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")
CODE = re.compile(r"`([A-Z]+(?:_[A-Z]+)*)`")
RAISERS = {"ProblemError": 1, "_unfit": 0, "_conflict": 0}
"""What makes a problem, and the place of the code among its arguments."""


def text_of(name: str) -> str:
    return (CHECKOUT / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=local_name)
def test_every_test_that_a_page_names_exists(page: Path) -> None:
    file, missing = "", []
    for path, name in TEST.findall(page.read_text(encoding="utf-8")):
        file = path or file  # `::test_…` is in the file named before
        source = CHECKOUT / "tests" / file
        if not source.is_file() or not re.search(rf"^ *(async )?def {name}\(", source.read_text("utf-8"), re.MULTILINE):
            missing.append(f"{file}::{name}")
    assert not missing


def test_the_guarantees_are_shown_by_tests() -> None:
    table = text_of("README.md").partition("## What it guarantees")[2].partition("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")][1:]
    assert rows
    assert not [row for row in rows if not TEST.search(row.split("|")[3])]


@pytest.mark.parametrize("page", PAGES, ids=local_name)
def test_every_link_to_a_file_or_heading_leads_somewhere(page: Path) -> None:
    broken = []
    for path, heading in LINK.findall(page.read_text(encoding="utf-8")):
        target = (page.parent / path) if path else page
        if not target.exists() or (heading and heading not in _anchors(target)):
            broken.append(f"{path}#{heading}")
    assert not broken


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def test_the_table_of_http_errors_is_what_the_center_raises() -> None:
    errors = text_of("docs/http.md").partition("\n## Errors")[2]
    http, _, own = errors.partition("A command's own `errorCode`")
    rows = [line.split("|")[2] for line in http.splitlines() if re.match(r"\| \d", line)]
    assert {code for cell in rows for code in CODE.findall(cell)} == set(_raised())
    profiles = CHECKOUT.glob("shared/src/*/profiles/data/*.yaml")
    sources = "".join(path.read_text("utf-8") for path in [*modules(), *profiles])
    codes = {code for line in own.splitlines() if line.startswith("| `") for code in CODE.findall(line.split("|")[1])}
    assert codes
    assert not [code for code in codes if not re.search(rf"\b{code}\b", sources)]


def _raised() -> Iterator[str]:
    """Codes of the problems that the center makes, and of those that it shares with others."""
    center = modules("laneway_center")
    for module in [*center, CHECKOUT / "shared/src/laneway_shared/problems.py"]:
        for node in ast.walk(parsed(module)):
            match node:
                case ast.Call(func=ast.Name(id=name), args=args) if name in RAISERS:
                    yield from _code(args[RAISERS[name]], center)
                case ast.Assign(targets=[ast.Name(id="_CODES")], value=ast.Dict(values=values)) if module not in center:
                    yield from (str(value.value) for value in values if isinstance(value, ast.Constant))
                case ast.keyword(arg="code", value=ast.Constant(value=str(code))):
                    yield code


def _code(said: ast.expr, center: list[Path]) -> Iterator[str]:
    match said:
        case ast.Constant(value=str(code)):
            yield code
        case ast.Attribute(value=ast.Name(id=error), attr="code"):  # the class says it
            found = [
                re.search(rf"class {error}\(.*?code = \"(\w+)\"", path.read_text("utf-8"), re.DOTALL) for path in center
            ]
            yield from (match[1] for match in found if match)
        case ast.Name(id="code"):  # inside `_unfit` and `_conflict`
            pass
        case _:
            pytest.fail(f"a problem with a computed code: {ast.unparse(said)}")


def test_the_table_of_metrics_is_what_the_center_counts() -> None:
    counted = re.findall(r'\(\s*"(laneway_\w+)"', text_of("services/center/src/laneway_center/metrics.py"))
    section = text_of("docs/operating.md").partition("\n## Metrics")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(laneway_\w+)`", section, re.MULTILINE)) == set(counted)
