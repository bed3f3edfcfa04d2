"""What processes have used: CPU from /proc/<pid>/stat with that of their children, memory shared fairly."""

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from laneway_local.stack import Stack

LOAD = "load generator"
_TICKS = os.sysconf("SC_CLK_TCK")
_PARENT, _CPU = 1, slice(11, 15)  # behind the command's name: utime, stime, and those of children waited for


@dataclass(frozen=True)
class Usage:
    """CPU seconds so far by name of process."""

    cpu_s: Mapping[str, float]

    def since(self, before: "Usage", commands: int) -> dict[str, float]:
        """CPU milliseconds per command in between, and their sum."""
        used = {name: (cpu - before.cpu_s.get(name, 0.0)) * 1000 / commands for name, cpu in self.cpu_s.items()}
        return {name: round(ms, 3) for name, ms in (used | {"sum": sum(used.values())}).items()}


def usage(stack: Stack) -> Usage:
    """CPU of everything in the stack, and of this process, which makes the load."""
    stats = _stats()
    families = _families(stack, stats)
    return Usage({name: sum(_cpu_s(stats[pid]) for pid in pids) for name, pids in families.items()})


def memory(stack: Stack) -> dict[str, dict[str, float]]:
    """MB by name: `now` of all its processes, shared pages divided among them; `peak` of the largest of them."""
    stats = _stats()
    return {
        name: {
            "now": round(sum(_kilobytes(pid, "smaps_rollup", "Pss:") for pid in pids) / 1024, 1),
            "peak": round(max(_kilobytes(pid, "status", "VmHWM:") for pid in pids) / 1024, 1),
        }
        for name, pids in _families(stack, stats).items()
    }


def _families(stack: Stack, stats: Mapping[int, list[str]]) -> dict[str, list[int]]:
    children: dict[int, list[int]] = {}
    for pid, fields in stats.items():
        children.setdefault(int(fields[_PARENT]), []).append(pid)
    found = {LOAD: [os.getpid()]}
    for name, record in stack.state.read().children.items():
        family, waiting = [], [record.who.pid]
        while waiting:
            pid = waiting.pop()
            if pid in stats:
                family.append(pid)
                waiting += children.get(pid, [])
        if family:
            found[name] = family
    return found


def _stats() -> dict[int, list[str]]:
    stats = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(FileNotFoundError, ProcessLookupError):
                stats[int(folder.name)] = (folder / "stat").read_text().rpartition(")")[2].split()
    return stats


def _cpu_s(fields: list[str]) -> float:
    return sum(int(ticks) for ticks in fields[_CPU]) / _TICKS


def _kilobytes(pid: int, file: str, field: str) -> int:
    try:
        lines = Path(f"/proc/{pid}/{file}").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(field)), 0)
