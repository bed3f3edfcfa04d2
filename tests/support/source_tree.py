"""The project's own files, as the architecture tests see them."""

import ast
import os
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
PACKAGES = sorted(path.parent for path in CHECKOUT.glob("*/**/src/laneway_*/__init__.py"))
"""The import packages: `laneway_shared`, the services, `laneway_local`."""


def modules(*packages: str) -> list[Path]:
    """The modules of these import packages; without names, of all."""
    return sorted(
        module
        for package in PACKAGES
        if not packages or package.name in packages
        for module in package.rglob("*.py")
        if "migrations" not in module.parts
    )


@cache
def parsed(module: Path) -> ast.Module:
    """The module's syntax tree."""
    return ast.parse(module.read_text(encoding="utf-8"), str(module))


def local_name(path: Path) -> str:
    """The path below the checkout, for messages and test ids."""
    return str(path.relative_to(CHECKOUT))


def written_files() -> Iterator[Path]:
    """Every file that is not ignored. A walk instead of a question to git, which a copied folder may lack."""
    ignored = [".git", *(line.rstrip("/") for line in (CHECKOUT / ".gitignore").read_text(encoding="utf-8").split())]

    def kept(name: str) -> bool:
        return not any(fnmatch(name, pattern) for pattern in ignored)

    for folder, below, files in os.walk(CHECKOUT):
        below[:] = filter(kept, below)
        yield from (Path(folder, name) for name in filter(kept, files))
