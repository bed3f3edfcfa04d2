"""Logs: one JSON line per event on standard error, the event's own fields first."""

import json
import logging
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, BinaryIO

import msgspec
import structlog

_encoder = msgspec.json.Encoder(enc_hook=repr)


def configure_logs(level: str, **context: Any) -> None:
    """One JSON line per event, on standard error, with `context` in each; libraries' warnings too."""
    _lines.start(sys.stderr.buffer, logging.getLevelNamesMapping()[level], context)
    structlog.configure(
        processors=[structlog.processors.format_exc_info, _lines.render],
        wrapper_class=structlog.make_filtering_bound_logger(_lines.least),
        logger_factory=structlog.BytesLoggerFactory(sys.stderr.buffer),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_log_level, structlog.processors.format_exc_info],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, _as_text],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    # aio-pika logs every lost connection with a traceback; our links say it in one line
    for noisy in ("aio_pika", "aiormq"):
        logging.getLogger(noisy).setLevel(logging.CRITICAL)


def add_context(**context: Any) -> None:
    """Fields for all lines from now on."""
    _lines.context.update(context)


def log_each(entries: Sequence[Mapping[str, Any]]) -> None:
    """An INFO line for each entry (`event` and its fields), written together: for what happens once per command.

    A call of a logger costs four times what the line itself does.
    """
    if _lines.file is None:  # nobody has configured logs: a test, which may look at them
        for entry in entries:
            structlog.get_logger().info(**entry)
    elif entries and _lines.least <= logging.INFO:
        rest = {**_lines.context, "level": "info", "timestamp": datetime.now(UTC)}
        _lines.file.write(b"".join([_line({**entry, **rest}) for entry in entries]))
        _lines.file.flush()


class _Lines:
    """Where lines go, and what stands in each."""

    def __init__(self) -> None:
        self.file: BinaryIO | None = None
        self.least = logging.INFO
        self.context: dict[str, Any] = {}

    def start(self, file: BinaryIO, least: int, context: Mapping[str, Any]) -> None:
        self.file, self.least, self.context = file, least, dict(context)

    def render(self, _logger: Any, level: str, entry: structlog.typing.EventDict) -> bytes:
        """The last processor of structlog."""
        event = entry.pop("event")
        return _line({"event": event, **entry, **self.context, "level": level, "timestamp": datetime.now(UTC)})[:-1]


_lines = _Lines()


def _line(entry: Mapping[str, Any]) -> bytes:
    try:
        return _encoder.encode(entry) + b"\n"
    except (TypeError, ValueError, OverflowError, RecursionError):  # a text that isn't UTF-8, a number beyond 64 bits
        return json.dumps(entry, default=_shown).encode() + b"\n"


def _shown(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime) else repr(value)


def _as_text(logger: Any, _name: str, entry: structlog.typing.EventDict) -> str:
    """A library's line."""
    return _lines.render(logger, entry.pop("level", "warning"), entry).decode()
