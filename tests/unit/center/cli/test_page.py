import re
from typing import Any

import typer

from laneway_center.cli import main
from support.source_tree import CHECKOUT

PAGE = (CHECKOUT / "docs/cli.md").read_text("utf-8")


def commands() -> dict[str, Any]:
    """Every command by what is typed."""
    root: Any = typer.main.get_command(main.app)
    found: dict[str, Any] = {}
    for name in main.GROUPS:
        group = root.get_command(None, name)
        inner = getattr(group, "commands", None)
        found |= {f"laneway {name} {each}": inner[each] for each in inner} if inner else {f"laneway {name}": group}
    return found


def test_the_page_has_every_command_and_no_other() -> None:
    assert set(re.findall(r"^\| `(laneway [a-z ]+)`", PAGE, re.MULTILINE)) | {"laneway audit"} == set(commands())


def test_the_page_knows_only_options_that_exist() -> None:
    options = {word for command in commands().values() for param in command.params for word in param.opts}
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", PAGE))
    assert named <= options | {"--help", "--install-completion", "--version"}


def test_every_command_has_output_as_json() -> None:
    without = {name for name, each in commands().items() if not any("--output" in param.opts for param in each.params)}
    assert without == {"laneway topology export"}, "it writes JSON anyway"
