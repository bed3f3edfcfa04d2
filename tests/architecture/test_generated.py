"""Committed reference files are what the code says now."""

import ast
import subprocess
import sys

from support.source_tree import CHECKOUT, modules, parsed


def test_generated_files_are_up_to_date() -> None:
    """If this fails: `make docs`, look at what changed, commit it."""
    command = [sys.executable, "docs/generate.py", "--check"]
    done = subprocess.run(command, cwd=CHECKOUT, env={}, capture_output=True, text=True, check=False)  # noqa: S603
    assert done.returncode == 0, done.stderr


def test_every_settings_class_is_on_the_settings_page() -> None:
    page = (CHECKOUT / "docs" / "settings.md").read_text(encoding="utf-8")
    classes = [
        f"{module.stem}.{node.name}"
        for module in modules()
        for node in ast.walk(parsed(module))
        if isinstance(node, ast.ClassDef)
        and any(isinstance(base, ast.Name) and base.id.endswith("Settings") for base in node.bases)
    ]
    assert classes
    assert not [name for name in classes if f"{name}`" not in page]
