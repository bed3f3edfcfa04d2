"""Writes the reference files that follow from the code: `make docs`, or `python docs/generate.py`.

With `--check` nothing is written: it names each file that is not what the code says now, and ends with status 1.
"""  # noqa: INP001 - a script, not a package

import ast
import inspect
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings

from laneway_ack_listener.settings import AckListenerSettings
from laneway_center.app import Center, build_app
from laneway_center.settings import CenterSettings
from laneway_driver.adapters.virtual.adapter import VirtualSettings
from laneway_driver.settings import DriverSettings
from laneway_shared import lifecycle
from laneway_shared.lifecycle import FINAL, OPERATOR_TRANSITIONS, TRANSITIONS, Status
from laneway_shared.mqtt import MqttSettings
from laneway_shared.settings import ServiceSettings
from laneway_shared.topology import Topology, definitions
from laneway_simulator.settings import SimulatorSettings

CHECKOUT = Path(__file__).resolve().parents[1]
SETTINGS: Mapping[str, type[BaseSettings]] = {
    "Every service": ServiceSettings,
    "Center": CenterSettings,
    "Driver": DriverSettings,
    "Driver with adapter mqtt, ack-listener and simulator": MqttSettings,
    "Driver with adapter virtual": VirtualSettings,
    "Ack-listener": AckListenerSettings,
    "Simulator": SimulatorSettings,
}
UNITS = {"_s": "seconds", "_ms": "milliseconds"}
KINDS: Mapping[Any, str] = {int: "whole number", float: "number", bool: "true or false", str: "text"}
BOUNDS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}

# ---------------------------------------------------------------------------------------- settings


@dataclass(frozen=True)
class Setting:
    """One variable, as its settings class declares it."""

    variable: str
    field: FieldInfo
    default: str | None  # as written in an environment; None: there is none to write
    remark: str  # said instead of a default that can't be written

    @property
    def values(self) -> str:
        """Unit or kind, and what is accepted."""
        options = [str(option) for option in get_args(self.field.annotation) if isinstance(option, str)]
        if options:
            return " or ".join(f"`{option}`" for option in options)
        unit = next((unit for suffix, unit in UNITS.items() if self.variable.lower().endswith(suffix)), None)
        said = [unit or KINDS.get(self.field.annotation, "path")]
        for rule in self.field.metadata:
            said += [f"{sign} {getattr(rule, name):,}" for name, sign in BOUNDS.items() if hasattr(rule, name)]
            if pattern := getattr(rule, "pattern", None):
                said.append(f"`{pattern}`")
        return ", ".join(said)


def settings_of(kind: type[BaseSettings]) -> Iterator[Setting]:
    """The settings that the class itself declares, in its order."""
    prefix = kind.model_config.get("env_prefix", "")
    for name in inspect.get_annotations(kind):
        field = kind.model_fields.get(name)
        if field is None:  # a class variable
            continue
        default, remark = None, ""
        if field.is_required():
            remark = "required"
        elif field.default_factory is not None:
            remark = f"by itself: {(inspect.getdoc(field.default_factory) or '').partition('.')[0].lower()}"
        elif field.default in (None, ""):
            default, remark = "", "empty"
        else:
            default = str(field.default)
        yield Setting(f"{prefix}{name}".upper(), field, default, remark)


def settings_page() -> str:
    """docs/settings.md."""
    lines = [
        "# Settings",
        "",
        "<!-- Made by `make docs` from the settings classes. Change those, not this page. -->",
        "",
        "Read from the environment once, when a process starts. A value that can't be used stops the process with a",
        "line that names the variable; an empty one counts as not set. A name that stands in several sections is set",
        "for each process separately.",
    ]
    for title, kind in SETTINGS.items():
        lines += ["", f"## {title}", "", f"`{kind.__module__}.{kind.__name__}`", ""]
        lines += ["| Variable | Default | Value | Meaning |", "|---|---|---|---|"]
        lines += [
            _row(f"`{setting.variable}`", f"`{setting.default}`" if setting.default else setting.remark,
                 setting.values, setting.field.description or "")
            for setting in settings_of(kind)
        ]  # fmt: skip
    return "\n".join(lines) + "\n"


def env_example() -> str:
    """.env.example."""
    lines = [
        "# Every setting with its default, made by `make docs`; docs/settings.md says which values are accepted.",
        "# Uncomment what you change. A name that stands in several sections is set for each process separately.",
    ]
    for title, kind in SETTINGS.items():
        lines += ["", f"# ---- {title}"]
        for setting in settings_of(kind):
            remark = f" ({setting.remark})" if setting.default is None else ""
            lines += [f"# {setting.field.description}{remark}", f"#{setting.variable}={setting.default or ''}"]
    return "\n".join(lines) + "\n"


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


# --------------------------------------------------------------------------------------- lifecycle


def lifecycle_page() -> str:
    """docs/lifecycle-diagram.md: the states and who may follow whom."""
    lines = [
        "# States and transitions",
        "",
        "<!-- Made by `make docs` from laneway_shared.lifecycle. Change that, not this page. -->",
        "",
        "```mermaid",
        "stateDiagram-v2",
        "    [*] --> PENDING",
        *_arrows(),
        *(f"    {state} --> [*]" for state in Status if state in FINAL),
        "```",
        "",
        "| State | Meaning | Goes to | An operator may send it to |",
        "|---|---|---|---|",
    ]
    meanings = _meanings()
    lines += [
        _row(f"`{state}`", meanings[state], _names(TRANSITIONS.get(state)), _names(OPERATOR_TRANSITIONS.get(state)))
        for state in Status
    ]
    return "\n".join(lines) + "\n"


def _arrows() -> Iterator[str]:
    for state in Status:
        alone, helped = TRANSITIONS.get(state, frozenset()), OPERATOR_TRANSITIONS.get(state, frozenset())
        for target in Status:
            if target in alone:
                yield f"    {state} --> {target}" + (" : or an operator" if target in helped else "")
            elif target in helped:
                yield f"    {state} --> {target} : an operator"


def _names(states: frozenset[Status] | None) -> str:
    return ", ".join(f"`{state}`" for state in Status if state in (states or ()))


def _meanings() -> dict[Status, str]:
    """What is written below each state where it is declared."""
    (declared,) = ast.parse(inspect.getsource(lifecycle.Status)).body
    assert isinstance(declared, ast.ClassDef)  # noqa: S101 - `class Status` is one statement
    found = {}
    for member, below in zip(declared.body, declared.body[1:], strict=False):
        match member, below:
            case ast.Assign(targets=[ast.Name(id=name)]), ast.Expr(value=ast.Constant(value=str(meaning))):
                found[Status[name]] = meaning
    return found


# --------------------------------------------------------------------------------------------- HTTP


def openapi_document() -> str:
    """docs/openapi.json: the center's HTTP interface."""
    app = build_app(Center(CenterSettings(roles="api")))
    document: dict[str, Any] = app.openapi()
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


# ---------------------------------------------------------------------------------------- RabbitMQ


def broker_definitions() -> str:
    """infra/rabbitmq/definitions.json: what RabbitMQ imports, with the queues of the drivers that are shipped."""
    return json.dumps(definitions(Topology(), ("mqtt", "virtual")), indent=2) + "\n"


PAGES: Mapping[str, Callable[[], str]] = {
    ".env.example": env_example,
    "docs/settings.md": settings_page,
    "docs/lifecycle-diagram.md": lifecycle_page,
    "docs/openapi.json": openapi_document,
    "infra/rabbitmq/definitions.json": broker_definitions,
}


def main(*, check: bool) -> None:
    """Write the files, or only look."""
    stale = []
    for name, page in PAGES.items():
        path, text = CHECKOUT / name, page()
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(name)
        if not check:
            path.write_text(text, encoding="utf-8")
    if stale and check:
        sys.exit(f"not what the code says now: {', '.join(stale)}; run `make docs` and commit")
    sys.stdout.write("".join(f"{name}: written\n" for name in stale) or "up to date\n")


if __name__ == "__main__":
    main(check="--check" in sys.argv[1:])
