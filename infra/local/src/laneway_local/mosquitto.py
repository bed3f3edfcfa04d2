"""A private Mosquitto 2: one anonymous listener on loopback, messages kept over restarts."""

import os
import shutil
import signal
from pathlib import Path

from laneway_local.errors import StackError
from laneway_local.ports import LOOPBACK, is_listener
from laneway_local.processes import Processes, Program, settle
from laneway_local.state import StateFile

NAME = "mosquitto"
READY_TIMEOUT_S = 20.0
QUEUED_MESSAGES = 100_000
SAVE_EVERY_S = 5


class Mosquitto:
    """Starts and stops the MQTT broker."""

    def __init__(self, directory: Path, state: StateFile, processes: Processes) -> None:
        self._directory = directory / NAME
        self._state = state
        self._processes = processes

    @property
    def url(self) -> str:
        """Where it is."""
        return f"mqtt://{LOOPBACK}:{self._state.read().ports[NAME]}"

    def start(self) -> None:
        """Start it, on its earlier port if it had one."""
        program = find_program()
        if program is None:
            raise StackError("Mosquitto is not installed.")
        self._directory.mkdir(parents=True, exist_ok=True)
        port = settle(
            self._processes,
            NAME,
            launch=lambda at: self._launch(program, at),
            is_ready=lambda at: is_listener(self._processes.pids(NAME), at),
            port=self._state.read().ports.get(NAME),
            timeout_s=READY_TIMEOUT_S,
        )
        self._state.put("ports", NAME, port)

    def stop(self) -> None:
        """Stop it; it writes its sessions and messages to disk first."""
        self._processes.stop([NAME])

    def kill(self) -> None:
        """End it at once; what it has not written for up to `SAVE_EVERY_S` seconds is lost."""
        self._processes.send(NAME, signal.SIGKILL)

    def _launch(self, program: Path, port: int) -> None:
        configuration = self._directory / "mosquitto.conf"
        lines = (
            f"listener {port} {LOOPBACK}",
            "allow_anonymous true",
            "set_tcp_nodelay true",  # else a message right behind an ack waits some 40 ms for TCP
            *(("user root",) if os.geteuid() == 0 else ()),  # it would become a user who can't enter our folder
            f"max_queued_messages {QUEUED_MESSAGES}",
            "persistence true",
            f"persistence_location {self._directory}/",
            f"autosave_interval {SAVE_EVERY_S}",
            "log_dest stderr",
            "connection_messages false",
        )
        configuration.write_text("\n".join(lines) + "\n")
        self._processes.spawn(NAME, Program(command=[program, "-c", configuration], folder=self._directory))


def find_program() -> Path | None:
    """Return the server's program; Debian keeps it in sbin, which is not on every user's PATH."""
    found = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin")
    return Path(found) if found else None
