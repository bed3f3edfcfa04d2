"""The import contracts of pyproject.toml bite: a copy of the packages with one wrong import is refused."""

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from support.source_tree import CHECKOUT, PACKAGES

Lint = Callable[[], set[str]]
"""Checks the copy; the names of the contracts it breaks."""


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All packages side by side in one folder."""
    folder = tmp_path_factory.mktemp("packages")
    for package in PACKAGES:
        shutil.copytree(package, folder / package.name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@pytest.fixture
def lint(copied: Path) -> Lint:
    linter = Path(sys.executable).with_name("lint-imports")
    command = [str(linter), "--config", str(CHECKOUT / "pyproject.toml"), "--cache-dir", str(copied / ".cache")]

    def broken() -> set[str]:
        done = subprocess.run(  # noqa: S603
            command, cwd=copied, env={"PYTHONPATH": str(copied)}, capture_output=True, text=True, check=False
        )
        verdicts = dict(re.findall(r"^(.+) (KEPT|BROKEN)\b", done.stdout, re.MULTILINE))
        assert verdicts, done.stdout + done.stderr
        found = {name for name, verdict in verdicts.items() if verdict == "BROKEN"}
        assert bool(done.returncode) == bool(found), done.stdout + done.stderr
        return found

    return broken


def test_the_tree_as_it_is_keeps_every_contract(lint: Lint) -> None:
    assert lint() == set()


SERVICES = "Services never import each other, shared imports none of them"
DATABASE = "Only the center knows a database"
STORE = "Database drivers and migrations stay in the center's store"
BROKER = "AMQP is spoken in laneway_shared.broker only"
OTHER_AMQP = "AMQP is spoken by no other library"
PURE = "Rules and messages do no I/O"
CYCLES = "No import cycles"
SHARED = "Shared code is layered: rules below, I/O above"
ROLES = "The center's roles meet in the store, never in each other"
ADAPTERS = "A driver's adapters don't know each other"
PORT = "Adapters know the port and nothing else of the driver"
ENTRY_POINT = "The driver finds adapters by entry point, never by import"

WRONG = [
    ("laneway_driver/locks.py", "sqlalchemy", {DATABASE}),
    ("laneway_driver/adapters/virtual/journal.py", "sqlite3", {DATABASE}),
    ("laneway_ack_listener/reading.py", "asyncpg", {DATABASE, STORE}),
    ("laneway_simulator/fleet.py", "psycopg", {DATABASE}),
    ("laneway_shared/telemetry.py", "sqlalchemy.ext.asyncio", {DATABASE}),
    ("laneway_center/api/commands.py", "asyncpg", {STORE}),
    ("laneway_center/intake.py", "aio_pika", {BROKER}),
    ("laneway_shared/topology.py", "aiormq.abc", {BROKER, PURE}),
    ("laneway_driver/consumer.py", "pamqp.commands", {OTHER_AMQP}),
    ("laneway_driver/clock.py", "laneway_center.settings", {SERVICES}),
    ("laneway_center/metrics.py", "laneway_driver.port", {SERVICES}),
    ("laneway_local/services.py", "laneway_simulator.topics", {SERVICES}),
    ("laneway_shared/problems.py", "laneway_ack_listener", {SERVICES}),
    ("laneway_shared/lifecycle.py", "time", {PURE}),
    ("laneway_shared/messages.py", "laneway_shared.settings", {PURE, SHARED}),
    ("laneway_shared/broker/link.py", "laneway_shared.mqtt", {SHARED}),
    ("laneway_center/store/tables.py", "laneway_center.store.commands", {CYCLES}),
    ("laneway_center/dispatch/dispatcher.py", "laneway_center.record.results", {ROLES}),
    ("laneway_center/store/due.py", "laneway_center.intake", {CYCLES, ROLES}),
    ("laneway_driver/adapters/mqtt/adapter.py", "laneway_driver.adapters.virtual", {ADAPTERS}),
    ("laneway_driver/adapters/mqtt/sender.py", "laneway_driver.settings", {PORT}),
    ("laneway_driver/main.py", "laneway_driver.adapters.virtual", {ENTRY_POINT}),
]


@pytest.mark.parametrize(("module", "imported", "contracts"), WRONG)
def test_a_wrong_import_breaks_its_contract(
    copied: Path, lint: Lint, module: str, imported: str, contracts: set[str]
) -> None:
    path = copied / module
    source = path.read_text(encoding="utf-8")
    path.write_text(f"{source}\nimport {imported}\n", encoding="utf-8")
    try:
        assert lint() == contracts
    finally:
        path.write_text(source, encoding="utf-8")


def test_a_new_module_needs_a_place_in_the_layers(copied: Path, lint: Lint) -> None:
    strangers = [copied / package / "stranger.py" for package in ("laneway_center", "laneway_driver", "laneway_shared")]
    for stranger in strangers:
        stranger.write_text('"""Where does this belong?"""\n', encoding="utf-8")
    try:
        assert lint() == {ROLES, PORT, SHARED}
    finally:
        for stranger in strangers:
            stranger.unlink()


def test_every_contract_is_broken_here() -> None:
    declared = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))
    names = {contract["name"] for contract in declared["tool"]["importlinter"]["contracts"]}
    assert set().union(*(contracts for _, _, contracts in WRONG)) == names
