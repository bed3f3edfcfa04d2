"""Each distribution declares what it imports, so that it also works without what others happen to bring."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterable
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest

from support.source_tree import PACKAGES, modules, parsed

REQUIREMENT = re.compile(r"^\s*([A-Za-z0-9._-]+)\s*(?:\[([^]]*)\])?")
DISTRIBUTIONS = {package.name.replace("_", "-"): package for package in PACKAGES}


@cache
def manifest(distribution: str) -> dict[str, Any]:
    path = DISTRIBUTIONS[distribution].parents[1] / "pyproject.toml"
    project: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
    assert project["name"] == distribution
    return project


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def declared(requirements: Iterable[str]) -> set[str]:
    """The distributions named, and those that come with the extras asked of our own."""
    names = set()
    for requirement in requirements:
        match = REQUIREMENT.match(requirement)
        assert match, requirement
        name, extras = normal(match[1]), match[2] or ""
        names.add(name)
        if name in DISTRIBUTIONS:
            offered = manifest(name)["optional-dependencies"] if extras else {}
            names |= declared(one for extra in extras.split(",") if extra for one in offered[extra.strip()])
    return names


def imported(package: Path) -> dict[str, str]:
    """The packages from elsewhere that are imported, each with a module that does it."""
    found = {}
    for module in [*modules(package.name), *package.rglob("migrations/**/*.py")]:
        for node in ast.walk(parsed(module)):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [node.module]
            found.update({name.partition(".")[0]: str(module.relative_to(package)) for name in names})
    return {name: by for name, by in found.items() if name not in {*sys.stdlib_module_names, package.name}}


def providers(name: str) -> set[str]:
    """The distributions that bring this package."""
    own = {package.name: distribution for distribution, package in DISTRIBUTIONS.items()}
    return {own[name]} if name in own else {normal(provider) for provider in packages_distributions()[name]}


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_what_is_imported_is_declared(distribution: str) -> None:
    project = manifest(distribution)
    own_extras = [each for extra in project.get("optional-dependencies", {}).values() for each in extra]
    known = declared([*project["dependencies"], *own_extras])
    found = imported(DISTRIBUTIONS[distribution])
    assert not {name: by for name, by in found.items() if not known & providers(name)}


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_what_is_declared_is_imported(distribution: str) -> None:
    project = manifest(distribution)
    used = set().union(*(providers(name) for name in imported(DISTRIBUTIONS[distribution])))
    assert not {match[1] for each in project["dependencies"] if (match := REQUIREMENT.match(each))} - used
