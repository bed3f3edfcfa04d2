"""What virtual devices really did, kept outside the process so that a kill loses nothing."""

import os
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from laneway_driver.port import Call
from laneway_shared.messages import CommandType, Target


class Journal:
    """A file to which each execution is appended as one line of JSON, in one write."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._file: int | None = None

    def open(self) -> None:
        """Open or create the file. Several processes may append to one."""
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def close(self) -> None:
        """Close it."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def executed(self, kind: CommandType, target: Target, value: str | None, call: Call) -> None:
        """Append an execution; when this returns, the kernel has it."""
        if self._file is None:
            return
        entry = {
            "at": datetime.now(UTC),
            "deviceSn": target.device_sn,
            "point": target.point,
            "type": kind,
            "value": value,
            "commandId": call.command_id,
            "attempt": call.attempt,
            "event": "executed",
        }
        os.write(self._file, msgspec.json.encode(entry) + b"\n")
