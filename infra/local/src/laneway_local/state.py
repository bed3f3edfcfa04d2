"""What a stack has started, on disk: enough for any later process to stop exactly that."""

import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from signal import SIGTERM
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from laneway_local.errors import StackError
from laneway_local.identity import Identity, boot_id, identify


class ChildRecord(BaseModel):
    """One started process and the signal that asks it to end."""

    model_config = ConfigDict(frozen=True)

    who: Identity
    stop_signal: int = int(SIGTERM)


class State(BaseModel):
    """Everything a stack has started or made outside of its directory. Replaced as a whole at each change."""

    model_config = ConfigDict(frozen=True)

    boot: str = ""
    starter: Identity | None = None
    complete: bool = False  # whether the start got to its end
    children: dict[str, ChildRecord] = {}
    ports: dict[str, int] = {}
    folders: tuple[str, ...] = ()  # outside of the directory, to be removed
    secrets: dict[str, str] = {}  # passwords of the private servers
    urls: dict[str, str] = {}  # what stack.env says
    services: tuple[str, ...] = ()  # Laneway services that belong to the running stack


class StateFile:
    """The state under one directory, written before anything relies on it. Safe to use from several threads."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "state.json"
        self._lock_path = directory / "lock"
        self._guard = threading.RLock()

    def read(self) -> State:
        """Return the state; an empty one when there is none. After a reboot no recorded process lives."""
        try:
            state = State.model_validate_json(self.path.read_bytes())
        except FileNotFoundError:
            return State(boot=boot_id())
        except ValidationError:
            raise StackError(f"{self.path} can't be read; remove it if nothing of this stack runs.") from None
        if state.boot != boot_id():
            return state.model_copy(update={"boot": boot_id(), "children": {}, "starter": None, "complete": False})
        return state

    def change(self, **fields: Any) -> State:
        """Replace these fields of the state and write it."""
        with self._guard:
            state = self.read().model_copy(update=fields)
            self.path.parent.mkdir(parents=True, exist_ok=True)
            fresh = self.path.with_name(f"{self.path.name}.{os.getpid()}.{threading.get_ident()}")
            with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
                file.write(state.model_dump_json(indent=1))
            fresh.replace(self.path)
            return state

    def put(self, field: str, key: str, value: Any) -> None:
        """Set one entry of a mapping field; `None` removes it."""
        with self._guard:
            entries = {**getattr(self.read(), field), key: value}
            self.change(**{field: {name: entry for name, entry in entries.items() if entry is not None}})

    def claim(self) -> None:
        """Record this process as the one that starts the stack."""
        self.change(starter=identify(os.getpid()), complete=False)

    def remove(self) -> None:
        """Forget everything, also what a process was about to write when it was killed."""
        self.path.unlink(missing_ok=True)
        for unfinished in self.path.parent.glob(f"{self.path.name}.*"):
            unfinished.unlink(missing_ok=True)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the directory against another `up` or `down`; the kernel lets go when this process ends."""
        self._lock_path.parent.mkdir(parents=True, exist_ok=True)
        with self._lock_path.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
