"""Who a process is: its id and its start time, so that a pid the kernel gave away again is never mistaken."""

import os
import select
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import BaseModel, ConfigDict


class Identity(BaseModel):
    """One process of this boot. `started` is field 22 of /proc/<pid>/stat, in clock ticks since the boot."""

    model_config = ConfigDict(frozen=True)

    pid: int
    started: int


_STATE, _STARTED = 0, 19  # counted from behind the command, which may itself hold spaces and brackets
_GONE = "ZXx"


def boot_id() -> str:
    """Name of this boot of the machine: start times are only comparable within one."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def identify(pid: int) -> Identity | None:
    """Return the process that has this id now, also one that has ended but was not yet waited for."""
    fields = _stat(pid)
    return None if fields is None else Identity(pid=pid, started=int(fields[_STARTED]))


def is_alive(who: Identity) -> bool:
    """Whether exactly this process still runs."""
    fields = _stat(who.pid)
    return fields is not None and int(fields[_STARTED]) == who.started and fields[_STATE] not in _GONE


def send(who: Identity, number: signal.Signals) -> bool:
    """Signal exactly this process; return whether it was there."""
    with _opened(who) as descriptor:
        return descriptor is not None and _signalled(descriptor, number)


def wait_end(who: Identity, timeout_s: float) -> bool:
    """Wait until the process has ended; return False when it still runs after `timeout_s`."""
    with _opened(who) as descriptor:
        if descriptor is None:
            return True
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(max(0.0, timeout_s) * 1000))


def end_all(who: dict[Identity, signal.Signals], patience_s: float) -> list[Identity]:
    """Ask every process to end by its own signal, then kill those left after `patience_s`.

    Returns those that had to be killed.
    """
    for one, number in who.items():
        send(one, number)
        send(one, signal.SIGCONT)  # a paused process would never hear the request
    deadline = time.monotonic() + patience_s
    stubborn = [one for one in who if not wait_end(one, deadline - time.monotonic())]
    for one in stubborn:
        send(one, signal.SIGKILL)
    for one in stubborn:
        wait_end(one, 10.0)
    return stubborn


def marked(variable: str, prefix: str) -> Iterator[tuple[Identity, str]]:
    """Find processes whose environment holds `variable` with a value that starts with `prefix`.

    Yields each with the rest of the value. Processes of other users can't be looked into and are left out.
    """
    wanted = f"{variable}={prefix}".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        who = identify(int(entry.name))
        try:
            environment = (entry / "environ").read_bytes()
        except OSError:
            continue
        for item in environment.split(b"\0"):
            if item.startswith(wanted) and who is not None and is_alive(who):
                yield who, item[len(wanted) :].decode(errors="replace")


def _stat(pid: int) -> list[str] | None:
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None


@contextmanager
def _opened(who: Identity) -> Iterator[int | None]:
    """Hold the process by a descriptor: checked after opening, so that it can't become another one meanwhile."""
    try:
        descriptor = os.pidfd_open(who.pid)
    except OSError:
        yield None
        return
    try:
        yield descriptor if is_alive(who) else None
    finally:
        os.close(descriptor)


def _signalled(descriptor: int, number: signal.Signals) -> bool:
    try:
        signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return False
    return True
