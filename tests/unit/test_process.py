import asyncio
import os
import signal
from collections.abc import Callable, Coroutine

import pytest
import structlog

from laneway_shared import process
from laneway_shared.errors import BrokerAwayError, SettingsError
from laneway_shared.settings import ServiceSettings

Work = Callable[[ServiceSettings], Coroutine[None, None, None]]


@pytest.fixture(autouse=True)
def _logs_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "configure_logs", lambda *_, **__: None)


def raising(error: Exception) -> Work:
    async def work(_settings: ServiceSettings) -> None:
        raise error

    return work


def ended(work: Work) -> tuple[int, list[str]]:
    """The exit code, and the events that were logged."""
    with structlog.testing.capture_logs() as logged:
        code = process.run("test", ServiceSettings, work)
    return code, [entry["event"] for entry in logged]


def test_work_that_ends_is_exit_code_0(capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[str] = []

    async def work(settings: ServiceSettings) -> None:
        seen.append(settings.topology_prefix)

    assert ended(work) == (0, [])
    assert seen == ["dc3"]
    assert not capsys.readouterr().err


@pytest.mark.parametrize(
    "error",
    [
        SettingsError("no such file"),
        ExceptionGroup("tasks", [ExceptionGroup("inner", [SettingsError("no such file")]), BrokerAwayError()]),
    ],
)
def test_a_known_error_is_one_line_with_its_code(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(raising(error)) == (1, [])
    assert capsys.readouterr().err == "laneway-test: SETTINGS_INVALID: no such file\n"


def test_a_setting_that_cannot_be_used_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LANEWAY_HEARTBEAT_EVERY_S", "-1")
    assert ended(raising(AssertionError("it must not start"))) == (1, [])
    assert capsys.readouterr().err.startswith("laneway-test: SETTINGS_INVALID: LANEWAY_HEARTBEAT_EVERY_S: ")


def test_a_bug_is_logged_and_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(raising(KeyError("oh"))) == (1, ["process.bug"])
    assert capsys.readouterr().err == "laneway-test: stopped by a bug; the log line above says where\n"


def test_a_known_error_hides_no_bug_beside_it(capsys: pytest.CaptureFixture[str]) -> None:
    both = ExceptionGroup("tasks", [BrokerAwayError("gone"), KeyError("oh")])
    assert ended(raising(both)) == (1, ["process.bug"])
    assert capsys.readouterr().err == "laneway-test: BROKER_AWAY: gone\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_ask_for_an_end(number: signal.Signals) -> None:
    async def work(_settings: ServiceSettings) -> None:
        stop = process.stop_event()
        os.kill(os.getpid(), number)
        async with asyncio.timeout(5):
            await stop.wait()

    assert ended(work) == (0, [])
