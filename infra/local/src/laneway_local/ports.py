"""Free loopback ports, and who listens on one."""

import secrets
import socket
from collections.abc import Iterable
from pathlib import Path

LOOPBACK = "127.0.0.1"
FIRST = 15_000  # below are the default ports of most servers
TRIES = 200

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LISTEN = "0A"


def free_port() -> int:
    """Return a loopback port nobody listens on at this moment.

    It lies below the range outgoing connections take theirs from, so that a server that is stopped and started
    again in the middle of a test finds its port still free.
    """
    end = int(_RANGE.read_text().split()[0]) if _RANGE.exists() else 32_768
    for _ in range(TRIES):
        port = FIRST + secrets.randbelow(max(end, FIRST + 1_000) - FIRST)
        if not is_taken(port):
            return port
    with socket.create_server((LOOPBACK, 0)) as any_free:
        return int(any_free.getsockname()[1])


def is_taken(port: int) -> bool:
    """Whether a listener on this loopback port would be refused."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
            probe.listen(1)
        except OSError:
            return True
    return False


def answers(host: str, port: int, timeout_s: float = 1.0) -> bool:
    """Whether something accepts connections there."""
    try:
        with socket.create_connection((host, port), timeout=timeout_s):
            return True
    except OSError:
        return False


def is_listener(pids: Iterable[int], port: int) -> bool:
    """Whether one of these processes itself listens on the port.

    A connection alone proves nothing: when a port was taken in the last moment, the answer is a stranger's.
    """
    sockets = _listening_sockets(port)
    return bool(sockets) and any(_holds(pid, sockets) for pid in pids)


def _listening_sockets(port: int) -> set[str]:
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        path = Path(table)
        for line in path.read_text().splitlines()[1:] if path.exists() else ():
            fields = line.split()
            if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                found.add(f"socket:[{fields[9]}]")
    return found


def _holds(pid: int, sockets: set[str]) -> bool:
    try:
        descriptors = list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False
    for descriptor in descriptors:
        try:
            if str(descriptor.readlink()) in sockets:
                return True
        except OSError:  # closed between the listing and the look
            continue
    return False
