"""`laneway-local` and the package installer, as a user calls them."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from laneway_local.packages import INSTALLER
from laneway_local.stack import Stack

COMMAND = Path(sys.executable).parent / "laneway-local"
PLAIN = {name: value for name, value in os.environ.items() if not name.startswith("LANEWAY_")}


@pytest.fixture
def checkout(tmp_path: Path) -> Iterator[Path]:
    """A folder that looks like a checkout."""
    manifest = tmp_path / "infra" / "local" / "pyproject.toml"
    manifest.parent.mkdir(parents=True)
    manifest.touch()
    yield tmp_path
    Stack(tmp_path / ".local", environment={}).down()


def call(checkout: Path, *words: str, **settings: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603
        [COMMAND, *words],
        cwd=checkout,
        env=PLAIN | settings,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_up_twice_then_down_twice(checkout: Path) -> None:
    first = call(checkout, "up", "--infra-only")
    assert (first.returncode, first.stderr) == (0, "")
    environment = checkout / ".local" / "stack.env"
    lines = environment.read_text().splitlines()
    assert all(re.fullmatch(r"LANEWAY_(AMQP|DATABASE|MQTT|RABBITMQ_MANAGEMENT)_URL=\S+", line) for line in lines)
    assert len(lines) == 4
    assert environment.stat().st_mode & 0o077 == 0
    pids = {name: record.who for name, record in Stack(checkout / ".local").state.read().children.items()}

    second = call(checkout / "infra", "up", "--infra-only")
    assert second.returncode == 0
    assert "already" in second.stdout
    assert {name: record.who for name, record in Stack(checkout / ".local").state.read().children.items()} == pids
    assert call(checkout, "status").returncode == 0

    passwords = [line.rpartition("@")[0].rpartition(":")[2] for line in lines if "@" in line]
    assert not any(password in first.stdout + second.stdout for password in passwords)

    for _ in range(2):
        assert call(checkout, "down").returncode == 0
    assert not environment.exists()
    assert call(checkout, "status").returncode == 1


def test_up_brings_back_what_has_died(checkout: Path) -> None:
    assert call(checkout, "up", "--infra-only").returncode == 0
    stack = Stack(checkout / ".local", environment={})
    urls, kept = stack.urls, stack.state.read().children["rabbitmq"].who
    stack.mosquitto.kill()
    assert call(checkout, "status").returncode == 1
    assert call(checkout, "up", "--infra-only").returncode == 0
    assert stack.missing() == []
    assert stack.urls == urls
    assert stack.state.read().children["rabbitmq"].who == kept


def test_an_interrupted_up_leaves_nothing(checkout: Path) -> None:
    stack = Stack(checkout / ".local", environment={})
    with subprocess.Popen(  # noqa: S603
        [COMMAND, "up", "--infra-only"], cwd=checkout, env=PLAIN, stderr=subprocess.PIPE, text=True
    ) as starter:
        deadline = time.monotonic() + 60
        while "rabbitmq" not in stack.state.read().children:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        folders = stack.state.read().folders
        starter.send_signal(signal.SIGTERM)
        _, said = starter.communicate(timeout=60)
    assert starter.returncode == 130
    assert said == "laneway-local: interrupted; what was started has been stopped.\n"
    assert not any(Path(folder).exists() for folder in folders)
    assert {path.name for path in stack.directory.iterdir()} == {"lock", "logs"}


def test_a_service_of_a_stack_that_does_not_run_is_refused_in_one_line(checkout: Path) -> None:
    done = call(checkout, "kill", "center")
    assert done.returncode == 1
    assert done.stderr == "laneway-local: center: the stack is not running; start it with `make up`.\n"


def fake_machine(folder: Path, **programs: str) -> dict[str, str]:
    folder.mkdir()
    for name, body in programs.items():
        program = folder / name.replace("_", "-")
        program.write_text(f"#!/bin/sh\n{body}\n")
        program.chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin"}


def install(environment: dict[str, str], *names: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603
        ["/bin/sh", INSTALLER, *names], env=environment, capture_output=True, text=True, timeout=30, check=False
    )


def test_without_root_and_sudo_one_line_says_what_to_install(tmp_path: Path) -> None:
    environment = fake_machine(tmp_path / "bin", id="echo 1000", sudo="exit 1", apt_get=f"touch {tmp_path}/called")
    done = install(environment, "rabbitmq-server", "mosquitto")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "Missing packages; please run: sudo apt-get install -y rabbitmq-server mosquitto\n"
    assert not (tmp_path / "called").exists()
