"""Named points at which a test lets a process die or freeze: around every commit, publish, confirm, ack and call.

Armed by `LANEWAY_FAILPOINTS` only: `name=kill` or `name=freeze`, with `:n` for the n-th pass, several separated by
commas; those of one point come one after the other. Without it a pass costs one truth test and does nothing. What
was struck is appended to the file named by `LANEWAY_FAILPOINTS_LOG`, and what stands there is not struck again, by
whichever process: a restarted one lives, and replicas can share a list.
"""

import fcntl
import os
import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass
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
        "schedule.archived": "a batch of final commands is in the history and committed",
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


@dataclass(frozen=True)
class _Strike:
    """What happens at a point, at its `passes`-th pass from now."""

    word: str
    passes: int


_armed: dict[str, list[_Strike]] = {}
_log: Path | None = None


def arm(environment: Mapping[str, str] = os.environ) -> None:
    """Read which points are armed.

    Raises:
        SettingsError: a point or an action that doesn't exist.
    """
    global _log  # noqa: PLW0603 - armed once, when the process starts
    _armed.clear()
    path = environment.get("LANEWAY_FAILPOINTS_LOG")
    _log = Path(path) if path else None
    wanted: dict[str, list[_Strike]] = {}
    for part in filter(None, environment.get("LANEWAY_FAILPOINTS", "").split(",")):
        name, _, action = part.partition("=")
        word, colon, passes = action.partition(":")
        if name not in POINTS or word not in _SIGNALS or (colon and not re.fullmatch(r"[1-9][0-9]{0,8}", passes)):
            raise SettingsError(f"LANEWAY_FAILPOINTS: {part!r} is not <point>=kill|freeze[:n] with a known point")
        wanted.setdefault(name, []).append(_Strike(word, int(passes or 1)))
    _armed.update(wanted)


def hit(name: str) -> None:
    """Pass a point."""
    if _armed:
        _pass(name)


def _pass(name: str) -> None:
    waiting = _armed.get(name, [])
    while waiting:
        strike = waiting[0]
        if strike.passes > 1:
            waiting[0] = _Strike(strike.word, strike.passes - 1)
            return
        waiting.pop(0)
        if _note(f"{name}={strike.word}"):
            os.kill(os.getpid(), _SIGNALS[strike.word])
            return


def _note(line: str) -> bool:
    """Write down what is about to happen; False when another process, or this one before its death, has done so."""
    if _log is None:
        return True
    with _log.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        if line in file.read().split():
            return False
        file.write(f"{line}\n")
        file.flush()
        os.fsync(file.fileno())
    return True
