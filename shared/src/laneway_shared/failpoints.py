"""Named points at which a test lets a process die or freeze: around every commit, publish, confirm, ack and call.

Armed by `LANEWAY_FAILPOINTS` only: `name=kill` or `name=freeze`, with `:n` for the n-th pass, several separated by
commas. Without it a pass costs one comparison and does nothing. What was struck is appended to the file named by
`LANEWAY_FAILPOINTS_LOG`, and a point struck there before is not struck again, so that a restarted process lives.
"""

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from laneway_shared.errors import SettingsError

POINTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "intake.stored": "commands are committed, the caller doesn't know yet",
        "dispatch.claimed": "lanes are claimed and committed, nothing is published",
        "dispatch.publishing": "the messages are made, none has left",
        "dispatch.confirmed": "the broker has them, they are not marked SENT",
        "dispatch.marked": "they are marked SENT",
        "record.received": "results are in hand, nothing is applied",
        "record.applied": "results are committed, not acked",
        "record.acked": "results are acked",
        "letters.received": "dead letters are in hand",
        "letters.stored": "they are committed, not sent back",
        "letters.sent_back": "LETTERs are confirmed, the dead letters not acked",
        "letters.acked": "they are acked",
        "schedule.taken": "due commands are taken, not asked about",
        "schedule.asked": "DUE is confirmed",
        "schedule.expired": "commands that never left are expired and committed",
        "driver.received": "an attempt is in hand, nothing is done",
        "driver.locked": "it holds the device's lock, its token is admitted",
        "driver.started": "STARTED is confirmed, the device not called",
        "driver.calling": "time was checked; the call is next",
        "driver.called": "the device was called, its result is not published",
        "driver.published": "the result is confirmed, the message not acked",
        "driver.acked": "the message is acked",
        "listener.received": "a device's answer is in hand",
        "listener.published": "its result is confirmed, the answer not acknowledged on MQTT",
        "listener.acknowledged": "the answer is acknowledged on MQTT",
    }
)

_SIGNALS = {"kill": signal.SIGKILL, "freeze": signal.SIGSTOP}
_armed: dict[str, tuple[signal.Signals, int]] = {}
_log: Path | None = None


def arm(environment: Mapping[str, str] = os.environ) -> None:
    """Read which points are armed.

    Raises:
        SettingsError: a point or an action that doesn't exist.
    """
    global _log  # noqa: PLW0603 - armed once, when the process starts
    _armed.clear()
    wanted = environment.get("LANEWAY_FAILPOINTS", "")
    path = environment.get("LANEWAY_FAILPOINTS_LOG")
    _log = Path(path) if path else None
    struck = set(_log.read_text().split()) if _log is not None and _log.exists() else set()
    for part in filter(None, wanted.split(",")):
        name, _, action = part.partition("=")
        word, _, times = action.partition(":")
        if name not in POINTS or word not in _SIGNALS or not (times or "1").isdigit():
            raise SettingsError(f"LANEWAY_FAILPOINTS: {part!r} is not <point>=kill|freeze[:n] with a known point")
        if f"{name}={word}" not in struck:
            _armed[name] = (_SIGNALS[word], int(times or "1"))


def hit(name: str) -> None:
    """Pass a point."""
    if _armed:
        _strike(name)


def _strike(name: str) -> None:
    number, left = _armed.get(name, (None, 0))
    if number is None:
        return
    if left > 1:
        _armed[name] = (number, left - 1)
        return
    del _armed[name]
    if _log is not None:
        word = next(word for word, each in _SIGNALS.items() if each is number)
        with _log.open("a") as file:
            file.write(f"{name}={word}\n")
            file.flush()
            os.fsync(file.fileno())
    os.kill(os.getpid(), number)
