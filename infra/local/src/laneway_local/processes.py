"""Child processes of a stack: started in sessions of their own, recorded at once, ended by id only."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO

from laneway_local import identity
from laneway_local.errors import NotReadyError, StackError
from laneway_local.identity import Identity
from laneway_local.ports import free_port, is_taken
from laneway_local.state import ChildRecord, StateFile

MARK = "LANEWAY_LOCAL_CHILD"  # in each child's environment: whose it is, should the record be cut short
PATIENCE_S = 20.0  # from the request to end until SIGKILL
PORT_TRIES = 5
_LOOK_EVERY_S = 0.05


@dataclass(frozen=True, kw_only=True)
class Program:
    """What to run. `settings` are added to the parent's environment; `user` is a name to become, if root."""

    command: Sequence[str | Path]
    settings: Mapping[str, str] = field(default_factory=dict)
    user: str | None = None
    folder: Path = Path("/")
    stop_signal: signal.Signals = signal.SIGTERM


class Processes:
    """Starts and ends the child processes of the stack in `directory`."""

    def __init__(self, directory: Path, state: StateFile) -> None:
        self._directory = directory
        self._state = state
        self._spawned: dict[str, subprocess.Popen[bytes]] = {}
        self._closed = False

    def log(self, name: str) -> Path:
        """Where this child's output goes."""
        return self._directory / "logs" / f"{name}.log"

    def spawn(self, name: str, program: Program) -> Identity:
        """Start one child and record it. Its output is added to its log."""
        if self._closed:
            raise StackError("The stack is being stopped.")
        if self.is_alive(name):
            raise StackError(f"{name} is running already.")
        self._reap(name)
        log = self.log(name)
        log.parent.mkdir(parents=True, exist_ok=True)
        try:
            with log.open("ab") as output:
                child = self._popen(name, program, output)
        except OSError as error:
            raise StackError(f"{name}: {program.command[0]} can't be started: {error.strerror}") from None
        self._spawned[name] = child
        who = identity.identify(child.pid)
        if who is None:  # pragma: no cover - it is our child and not waited for, so it is there
            raise StackError(f"{name} could not be started.")
        self._state.put("children", name, ChildRecord(who=who, stop_signal=program.stop_signal))
        return who

    def _popen(self, name: str, program: Program, output: IO[bytes]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(  # noqa: S603 - the commands are this package's own
            [str(part) for part in program.command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=program.folder,
            env={**os.environ, **program.settings, MARK: f"{self._directory}:{name}"},
            start_new_session=True,  # Ctrl-C in the terminal is the starter's to handle
            user=program.user,
            group=program.user,
            extra_groups=None if program.user is None else [],
        )

    def run(self, name: str, program: Program, timeout_s: float = 60.0) -> None:
        """Run a tool to its end, with its output in the log `name`.

        Raises:
            NotReadyError: it failed or took too long.
        """
        who = self.spawn(name, program)
        try:
            if not identity.wait_end(who, timeout_s):
                raise NotReadyError(f"{name} did not end within {timeout_s:g} s; see {self.log(name)}")
        finally:
            identity.end_all({who: signal.SIGTERM}, 1.0)
            status = self._spawned[name].wait()
            self._forget(name)
        if status:
            raise NotReadyError(f"{name} failed ({self.last_line(name)}); see {self.log(name)}")

    def is_alive(self, name: str) -> bool:
        """Whether the recorded process runs."""
        record = self._state.read().children.get(name)
        return record is not None and identity.is_alive(record.who)

    def has_ended(self, name: str, within_s: float) -> bool:
        """Watch the child for `within_s` seconds; return whether it ended in that time."""
        record = self._state.read().children.get(name)
        return record is None or identity.wait_end(record.who, within_s)

    def pids(self, name: str) -> list[int]:
        """Ids of the recorded process and of what it started."""
        return [who.pid for who in self._family(name)]

    def send(self, name: str, number: signal.Signals) -> None:
        """Signal the child and what it started: SIGKILL, SIGSTOP or SIGCONT."""
        for who in self._family(name):
            identity.send(who, number)
        if number == signal.SIGKILL:
            for who in self._family(name):
                identity.wait_end(who, PATIENCE_S)
            self._forget(name)

    def stop(self, names: Iterable[str], patience_s: float = PATIENCE_S) -> list[str]:
        """End these children together: asked first, killed after `patience_s`. Returns those killed."""
        records = self._state.read().children
        known = {name: records[name] for name in names if name in records}
        killed = identity.end_all(
            {record.who: signal.Signals(record.stop_signal) for record in known.values()}, patience_s
        )
        for name in known:
            identity.end_all(dict.fromkeys(self._family(name), signal.SIGTERM), 2.0)
            self._forget(name)
        return [name for name, record in known.items() if record.who in killed]

    def close(self) -> None:
        """Start nothing more, and end everything that was started."""
        self._closed = True
        self.stop(list(self._state.read().children))
        self.stop_strays()

    def stop_strays(self) -> None:
        """End what carries this stack's mark but has no record: its starter was killed in between."""
        strays = dict.fromkeys((who for who, _ in identity.marked(MARK, f"{self._directory}:")), signal.SIGTERM)
        if strays:
            identity.end_all(strays, 5.0)
        for child in self._spawned.values():
            child.poll()

    def wait_until(self, name: str, is_ready: Callable[[], bool], timeout_s: float) -> None:
        """Wait until the child is ready.

        Raises:
            NotReadyError: it ended, or was not ready in time.
        """
        deadline = time.monotonic() + timeout_s
        while not is_ready():
            if not self.is_alive(name):
                raise NotReadyError(f"{name} ended while it started ({self.last_line(name)}); see {self.log(name)}")
            if time.monotonic() > deadline:
                raise NotReadyError(f"{name} was not ready within {timeout_s:g} s; see {self.log(name)}")
            time.sleep(_LOOK_EVERY_S)

    def last_line(self, name: str) -> str:
        """Return the last line of the child's log that says something, shortened."""
        log = self.log(name)
        lines = [line.strip() for line in log.read_text(errors="replace").splitlines()] if log.exists() else []
        return next((line for line in reversed(lines) if line), "no output")[:200]

    def _family(self, name: str) -> list[Identity]:
        record = self._state.read().children.get(name)
        first = [record.who] if record is not None and identity.is_alive(record.who) else []
        return list(
            dict.fromkeys(
                [*first, *(who for who, rest in identity.marked(MARK, f"{self._directory}:{name}") if not rest)]
            )
        )

    def _forget(self, name: str) -> None:
        self._reap(name)
        self._state.put("children", name, None)

    def _reap(self, name: str) -> None:
        child = self._spawned.pop(name, None)
        if child is not None:
            child.wait()


def settle(
    processes: Processes,
    name: str,
    *,
    launch: Callable[[int], object],
    is_ready: Callable[[int], bool],
    port: int | None,
    timeout_s: float,
) -> int:
    """Start a server and wait until it is ready; a port that was taken meanwhile is replaced by another.

    `port` is the one to keep (a restart in place), or None for any. Returns the port it listens on.
    """
    tries = 1 if port is not None else PORT_TRIES
    while True:
        chosen = port if port is not None else free_port()
        launch(chosen)
        try:
            processes.wait_until(name, partial(is_ready, chosen), timeout_s)
        except NotReadyError:
            tries -= 1
            lost_port = not processes.is_alive(name) and is_taken(chosen)
            processes.stop([name], 2.0)
            if not lost_port or not tries:
                raise
        else:
            return chosen
