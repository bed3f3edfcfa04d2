"""The command `laneway`, as a user's shell runs it and inside of the test's own process."""

import asyncio
import logging
import os
import pty
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import pytest
import structlog

from laneway_center.cli import main
from laneway_local.services import script
from laneway_shared import telemetry

LIMIT_S = 60.0
STYLE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass(frozen=True)
class Ended:
    """How a run ended, and what was said."""

    code: int
    out: str
    errors: str

    @property
    def reason(self) -> str:
        """The one line that says why, and that it is one."""
        assert self.errors.count("\n") == 1, self.errors
        assert "Traceback" not in self.errors
        return self.errors.strip()


def environment(given: dict[str, str]) -> dict[str, str]:
    """This process's environment without what would reach a system outside of the test."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LANEWAY_")}
    return kept | {"COLUMNS": "", "NO_COLOR": ""} | given


async def laneway(*arguments: str, **given: str) -> Ended:
    """Run it in a process of its own, in a pipe."""
    process = await asyncio.create_subprocess_exec(
        script("laneway"),
        *arguments,
        env=environment(given),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(LIMIT_S):
        out, errors = await process.communicate()
    assert process.returncode is not None
    return Ended(process.returncode, out.decode(), errors.decode())


async def on_terminal(*arguments: str, columns: int = 80, given: dict[str, str]) -> tuple[int, str]:
    """Run it on a terminal of that width: exit code, and what stood there, without bold and colour."""
    ours, theirs = pty.openpty()
    os.set_blocking(ours, False)
    process = await asyncio.create_subprocess_exec(
        script("laneway"), *arguments, env=environment(given) | {"TERM": "xterm", "COLUMNS": str(columns)},
        stdin=theirs, stdout=theirs, stderr=theirs,
    )  # fmt: skip
    os.close(theirs)
    seen = b""
    async with asyncio.timeout(LIMIT_S):
        while process.returncode is None:
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), 0.02)
            with suppress(BlockingIOError, OSError):
                while part := os.read(ours, 65_536):
                    seen += part
    os.close(ours)
    return process.returncode, STYLE.sub("", seen.decode().replace("\r\n", "\n"))


@contextmanager
def _logs_restored() -> Iterator[None]:
    """Some commands silence all logs of their process: here the tests that follow still want to hear them."""
    root, config, lines = logging.getLogger(), structlog.get_config(), dict(vars(telemetry._lines))
    handlers, levels = root.handlers[:], {name: logging.getLogger(name).level for name in (None, "aio_pika", "aiormq")}
    try:
        yield
    finally:
        structlog.configure(**config)
        vars(telemetry._lines).update(lines)
        root.handlers = handlers
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)


def run_here(
    arguments: Sequence[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], **given: str
) -> Ended:
    """Run it in this process."""
    for name in os.environ:
        if name.startswith("LANEWAY_"):
            monkeypatch.delenv(name)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "argv", ["laneway", *arguments])
    monkeypatch.setattr(logging, "disable", lambda: None)  # it would stay off for the tests that follow
    capsys.readouterr()
    with _logs_restored(), pytest.raises(SystemExit) as ended:
        main.main()
    said = capsys.readouterr()
    assert isinstance(ended.value.code, int)
    return Ended(ended.value.code, said.out, said.err)
