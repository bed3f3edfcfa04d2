import json
import logging
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
import structlog

from laneway_shared import telemetry
from laneway_shared.lifecycle import Status


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    monkeypatch.setattr(telemetry, "_lines", telemetry._Lines())
    yield
    root.handlers, root.level = handlers, level
    structlog.reset_defaults()


def written(said: pytest.CaptureFixture[bytes]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in said.readouterr().err.splitlines()]


def test_a_line_has_its_fields_the_context_the_level_and_a_time(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    telemetry.configure_logs("INFO", process="p")
    telemetry.add_context(service="s")
    log = structlog.get_logger("x")
    log.debug("too fine")
    log.warning("known", status=Status.SUCCESS, none=None, n=7)
    [line] = written(capsysbinary)
    assert datetime.fromisoformat(line.pop("timestamp")).tzinfo is not None
    assert line == {
        "event": "known", "status": "SUCCESS", "none": None, "n": 7, "process": "p", "service": "s", "level": "warning",
    }  # fmt: skip


def test_what_json_cannot_say_is_said_otherwise(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    telemetry.configure_logs("INFO", process="p")
    log = structlog.get_logger("x")
    log.info("odd", big=2**70, half="\ud800", thing=complex(1, 2), when=datetime(2030, 1, 1, tzinfo=UTC))
    try:
        int("that's why")
    except ValueError:
        log.exception("broke")
    odd, broke = written(capsysbinary)
    assert (odd["big"], odd["half"], odd["thing"]) == (2**70, "\ud800", "(1+2j)")
    assert datetime.fromisoformat(odd["timestamp"])
    assert "that's why" in broke["exception"]
    assert broke["level"] == "error"


def test_libraries_are_heard_from_warning_on(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    telemetry.configure_logs("INFO", process="p")
    logging.getLogger("some.library").info("no")
    logging.getLogger("some.library").warning("look at %s", "this")
    [line] = written(capsysbinary)
    assert (line["event"], line["level"], line["process"]) == ("look at this", "warning", "p")


@pytest.mark.parametrize("level", ["INFO", "WARNING"])
def test_many_lines_at_once(level: str, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    telemetry.configure_logs(level, process="p")
    telemetry.log_each([{"event": "claim", "n": n} for n in range(3)])
    telemetry.log_each([])
    lines = written(capsysbinary)
    assert [line["n"] for line in lines] == ([0, 1, 2] if level == "INFO" else [])
    assert all((line["event"], line["level"], line["process"]) == ("claim", "info", "p") for line in lines)


def test_without_configuration_they_are_a_loggers() -> None:
    with structlog.testing.capture_logs() as logged:
        telemetry.log_each([{"event": "claim", "n": 1}])
    assert logged == [{"event": "claim", "n": 1, "log_level": "info"}]
