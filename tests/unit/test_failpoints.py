"""The failpoints: each named once in the source, nothing unless armed, and what happens when they are."""

import ast
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from laneway_shared import failpoints
from laneway_shared.errors import SettingsError
from support.source_tree import local_name, modules, parsed

POINT, OTHER = "driver.called", "driver.acked"
KILL, FREEZE = signal.SIGKILL, signal.SIGSTOP


@pytest.fixture
def struck(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The signals that this process would have got; nothing stays armed."""
    signals: list[int] = []
    monkeypatch.setattr(os, "kill", lambda _, number: signals.append(number))
    yield signals
    failpoints.arm({})


def passed() -> Iterator[tuple[str, str]]:
    """Where the source passes which point."""
    for module in modules():
        for node in ast.walk(parsed(module)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "failpoints.hit":
                assert [type(argument) for argument in node.args] == [ast.Constant], "a name that can be searched for"
                yield ast.literal_eval(node.args[0]), f"{local_name(module)}:{node.lineno}"


def test_each_point_stands_at_one_place_in_the_source_and_no_other_is_named() -> None:
    places = list(passed())
    names = Counter(name for name, _ in places)
    assert names.keys() == failpoints.POINTS.keys()
    assert set(names.values()) == {1}, places


def test_nothing_is_armed_without_the_variable(struck: list[int]) -> None:
    failpoints.arm({"LANEWAY_FAILPOINTS": ""})
    for name in failpoints.POINTS:
        failpoints.hit(name)
    assert not struck
    assert not failpoints._armed


def test_a_pass_of_an_unarmed_process_is_one_question(monkeypatch: pytest.MonkeyPatch) -> None:
    failpoints.arm({})
    monkeypatch.setattr(failpoints, "_pass", lambda _: pytest.fail("more than the question"))
    failpoints.hit(POINT)


def test_only_the_armed_point_strikes_and_only_once(struck: list[int]) -> None:
    failpoints.arm({"LANEWAY_FAILPOINTS": f"{POINT}=kill"})
    failpoints.hit(OTHER)
    assert struck == []
    failpoints.hit(POINT)
    failpoints.hit(POINT)
    assert struck == [KILL]


def test_the_nth_pass_and_several_strikes_at_one_point(struck: list[int]) -> None:
    failpoints.arm({"LANEWAY_FAILPOINTS": f"{POINT}=freeze:2,{POINT}=kill:2,{OTHER}=kill"})
    counts = []
    for _ in range(5):
        failpoints.hit(POINT)
        counts.append(len(struck))
    assert counts == [0, 1, 1, 2, 2]
    failpoints.hit(OTHER)
    assert struck == [FREEZE, KILL, KILL]


def test_what_the_log_has_is_not_struck_again_by_anybody(struck: list[int], tmp_path: Path) -> None:
    log = tmp_path / "struck"
    wanted = {"LANEWAY_FAILPOINTS": f"{POINT}=freeze,{POINT}=kill", "LANEWAY_FAILPOINTS_LOG": str(log)}
    failpoints.arm(wanted)
    failpoints.hit(POINT)
    assert log.read_text() == f"{POINT}=freeze\n"
    failpoints.arm(wanted)  # as a restarted process would: the next pass is the kill's
    failpoints.hit(POINT)
    failpoints.arm(wanted)
    failpoints.hit(POINT)
    assert struck == [FREEZE, KILL]
    failpoints.arm(wanted)
    log.write_text(f"{POINT}=freeze\n{POINT}=kill\n")  # a replica was there while this process ran
    failpoints.hit(POINT)
    assert struck == [FREEZE, KILL]


@pytest.mark.parametrize(
    "wrong", ["driver.nowhere=kill", f"{POINT}=explode", POINT, f"{POINT}=kill:0", f"{POINT}=kill:"]
)
def test_what_cannot_be_meant_is_refused_in_words(wrong: str, struck: list[int]) -> None:
    with pytest.raises(SettingsError, match="LANEWAY_FAILPOINTS"):
        failpoints.arm({"LANEWAY_FAILPOINTS": wrong})


def test_a_process_freezes_at_a_point_and_dies_at_the_next(tmp_path: Path) -> None:
    program = f"from laneway_shared import failpoints as f; f.arm(); f.hit({POINT!r}); f.hit({OTHER!r}); print('alive')"
    settings = {"LANEWAY_FAILPOINTS": f"{POINT}=freeze,{OTHER}=kill", "LANEWAY_FAILPOINTS_LOG": str(tmp_path / "log")}
    with subprocess.Popen(  # noqa: S603 - a program of this test
        [sys.executable, "-c", program], env=os.environ | settings, stdout=subprocess.PIPE
    ) as process:
        try:
            until(lambda: Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
            process.send_signal(signal.SIGCONT)
            said, _ = process.communicate(timeout=20)
        finally:
            process.kill()
    assert (process.returncode, said) == (-KILL, b"")
    assert (tmp_path / "log").read_text().split() == [f"{POINT}=freeze", f"{OTHER}=kill"]


def until(condition: Callable[[], bool], within_s: float = 20) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it didn't come true in time"
        time.sleep(0.01)
