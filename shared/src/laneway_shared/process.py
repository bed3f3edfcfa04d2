"""What every service process does alike: read settings, log, run until a signal, and say in one line why it can't."""

import asyncio
import gc
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import TypeVar

import structlog
import uvloop

from laneway_shared import failpoints
from laneway_shared.errors import LanewayError
from laneway_shared.settings import ServiceSettings, load
from laneway_shared.telemetry import configure_logs

log = structlog.get_logger(__name__)

INTERRUPTED = 130
COLLECT_AFTER = 10_000, 20, 20  # objects, then collections of the younger generation
SettingsT = TypeVar("SettingsT", bound=ServiceSettings)


def run(name: str, kind: type[SettingsT], work: Callable[[SettingsT], Coroutine[None, None, None]]) -> int:
    """Run the process `laneway-<name>` to its end and return its exit code.

    0: `work` has ended. 1: it can't go on; the last line on standard error says why, with the error's code. 130:
    interrupted outside of what `stop_event` covers. A bug is logged with its traceback, also beside other errors.
    """
    try:
        failpoints.arm()
        settings = load(kind)
        configure_logs(settings.log_level, process=name, instance=settings.instance)
        _spare_collections()
        uvloop.run(work(settings))
    except Exception as error:
        known, bugs = _sorted(error)
        if bugs is not None:
            log.critical("process.bug", exc_info=bugs)
        reason = f"{known.code}: {known.message}" if known else "stopped by a bug; the log line above says where"
        sys.stderr.write(f"laneway-{name}: {reason}\n")
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def _spare_collections() -> None:
    """Don't search for garbage in what was imported, nor after every 700 objects: a batch makes thousands."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)


def stop_event() -> asyncio.Event:
    """An event that SIGTERM and SIGINT set, instead of what they do otherwise."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


def _sorted(error: Exception) -> tuple[LanewayError | None, Exception | None]:
    """The first error with a code, and all that have none, where several tasks may have failed."""
    if not isinstance(error, ExceptionGroup):
        return (error, None) if isinstance(error, LanewayError) else (None, error)
    known, bugs = error.split(LanewayError)
    first: Exception | None = known
    while isinstance(first, ExceptionGroup):
        first = first.exceptions[0]
    return (first if isinstance(first, LanewayError) else None), bugs
