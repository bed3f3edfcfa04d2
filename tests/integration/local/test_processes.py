"""Children of a stack: recorded, ended by identity, never by a number alone."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from socket import create_server

import pytest

from laneway_local import processes
from laneway_local.errors import NotReadyError, StackError
from laneway_local.identity import Identity, identify, is_alive
from laneway_local.ports import LOOPBACK, free_port, is_taken
from laneway_local.services import Service
from laneway_local.stack import Stack
from laneway_local.state import ChildRecord

SLEEPER = Service(name="sleeper", command=("python", "-c", "import time; time.sleep(600)"))
STUBBORN = Service(
    name="stubborn",
    command=(
        "python",
        "-c",
        "import signal, time; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); time.sleep(600)",
    ),
    ready_line="ready",
)


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    made = Stack(tmp_path, environment={})
    yield made
    made.down()


def who(stack: Stack, name: str) -> Identity:
    return stack.state.read().children[name].who


def test_a_pid_that_was_given_to_another_process_is_never_killed(stack: Stack) -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as stranger:
        there = identify(stranger.pid)
        assert there is not None
        ours = Identity(pid=there.pid, started=there.started - 1)
        stack.state.put("children", "gone", ChildRecord(who=ours))
        assert not stack.processes.is_alive("gone")
        stack.processes.send("gone", signal.SIGKILL)
        stack.down()
        assert is_alive(there)
        stranger.kill()


def test_records_of_an_earlier_boot_count_for_nothing(stack: Stack) -> None:
    there = identify(os.getpid())
    assert there is not None
    stack.state.put("children", "old", ChildRecord(who=there))
    stack.state.change(boot="another boot")
    assert stack.state.read().children == {}


def test_another_process_ends_what_this_one_started(stack: Stack) -> None:
    stack.start_service(SLEEPER)
    sleeper = who(stack, "sleeper")
    Stack(stack.directory, environment={}).down()
    assert not is_alive(sleeper)


def test_what_was_started_but_not_recorded_is_found_by_its_mark(stack: Stack) -> None:
    stack.start_service(SLEEPER)
    sleeper = who(stack, "sleeper")
    stack.state.remove()
    Stack(stack.directory, environment={}).down()
    assert not is_alive(sleeper)


def test_a_service_that_ignores_the_request_is_killed_after_the_bound(stack: Stack) -> None:
    stack.start_service(STUBBORN)
    stubborn = who(stack, "stubborn")
    assert stack.stop_service("stubborn", patience_s=0.2) is False
    assert not is_alive(stubborn)


def test_a_paused_service_is_stopped_in_order(stack: Stack) -> None:
    stack.start_service(SLEEPER)
    stack.pause_service("sleeper")
    assert stack.stop_service("sleeper") is True


def test_a_killed_service_can_be_restarted_with_its_settings(stack: Stack) -> None:
    shows = Service(
        name="shows",
        command=("python", "-c", "import os, time; print(os.environ['SHOWN'], flush=True); time.sleep(600)"),
        ready_line="it is shown",
    )
    stack.start_service(shows, SHOWN="it is shown")
    first = who(stack, "shows")
    stack.kill_service("shows")
    assert not is_alive(first)
    stack.restart_service("shows")
    assert who(stack, "shows") != first
    assert stack.processes.log("shows").read_text().count("it is shown") == 2


def test_a_service_that_ends_at_once_is_reported_with_its_last_words(stack: Stack) -> None:
    with pytest.raises(StackError, match="no such setting"):
        stack.start_service(Service(name="broken", command=("python", "-c", "raise SystemExit('no such setting')")))
    assert stack.state.read().children == {}


def test_a_command_that_is_not_installed_is_reported_in_one_line(stack: Stack) -> None:
    with pytest.raises(StackError, match=r"absent: .* can't be started: No such file"):
        stack.start_service(Service(name="absent", command=("laneway-absent",)))


def test_a_port_that_was_taken_is_replaced_by_another(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    with create_server((LOOPBACK, 0)) as taken:
        taken_port = taken.getsockname()[1]
        offered = iter([taken_port, taken_port, free_port()])
        monkeypatch.setattr(processes, "free_port", lambda: next(offered))
        stack.mosquitto.start()
    port = stack.state.read().ports["mosquitto"]
    assert port != taken_port
    assert is_taken(port)


def test_a_restart_does_not_move_to_another_port(stack: Stack) -> None:
    stack.mosquitto.start()
    stack.mosquitto.stop()
    with (
        create_server((LOOPBACK, stack.state.read().ports["mosquitto"])),
        pytest.raises(NotReadyError, match=r"ended while it started .*in use"),
    ):
        stack.mosquitto.start()
    stack.mosquitto.start()


def test_the_state_is_for_its_owner_alone(stack: Stack) -> None:
    stack.state.put("secrets", "some", "password")
    assert stack.state.path.stat().st_mode & 0o077 == 0
