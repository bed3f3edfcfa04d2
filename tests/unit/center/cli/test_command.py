import json
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from laneway_center.cli import command_watch
from laneway_center.cli.command_watch import Event, events
from laneway_center.cli.output import age, cell, span

from .conftest import problem

if TYPE_CHECKING:
    from .conftest import Run, StandIn

ID = "0190c3e2-7b1c-7000-8000-3f2a9d5c1e77"
AT = "2026-01-31T17:01:25.797000Z"


def command(status: str = "SUCCESS", **other: Any) -> dict[str, Any]:
    return {
        "commandId": ID, "status": status, "final": status not in {"PENDING", "SENT", "MANUAL_REVIEW"},
        "type": "WRITE", "deviceId": 1024, "pointId": 2048, "value": "1", "responseValue": None, "errorCode": None,
        "errorMessage": None, "attempt": 1, "attemptsSpent": 0, "maxAttempts": 3, "laneKey": "device:1024", "seq": 7,
        "priority": 1, "driver": "mqtt", "gate": "ack", "retrySafety": "safe", "source": "HTTP", "sourceUserId": None,
        "intentKey": None, "occurredAt": AT, "acceptedAt": AT, "sentAt": AT, "startedAt": None, "finishedAt": None,
        "expireAt": AT, "nextTryAt": None, "answerDueAt": None,
    } | other  # fmt: skip


def line(kind: str, before: str | None, after: str) -> dict[str, Any]:
    return {"at": AT, "kind": kind, "from": before, "to": after, "attempt": 1, "note": "so it was", "detail": None}


def sent(*said: tuple[int, str, dict[str, Any]]) -> httpx.Response:
    text = ": heartbeat\n\n" + "".join(
        (f"id: {n}\n" if n else "") + f"event: {name}\ndata: {json.dumps(data)}\n\n" for n, name, data in said
    )
    return httpx.Response(200, text=text, headers={"content-type": "text/event-stream"})


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_watch, "PAUSE_S", 0)


def test_a_write_and_a_read_are_submitted(laneway: "Run", center: "StandIn") -> None:
    center.answers["POST /commands"] = command("PENDING")
    ended = laneway(
        "command", "submit", "--device", "1024", "--point", "2048", "--value", "-5", "--id", ID, "--expire-in", "30",
        "--retry-safety", "unsafe", "--tenant", "7",
    )  # fmt: skip
    assert (ended.code, ended.out) == (0, f"{ID} is PENDING, place 7 in lane device:1024\n")
    assert center.bodies[0] == {
        "commandId": ID, "deviceId": 1024, "pointId": 2048, "type": "WRITE", "value": "-5", "expireIn": 30.0,
        "retrySafety": "unsafe",
    }  # fmt: skip
    assert center.asked[0].headers["X-Tenant-Id"] == "7"
    assert laneway("command", "submit", "--device", "1", "--point", "2", "--output", "json").code == 0
    assert (center.bodies[1]["type"], "value" in center.bodies[1]) == ("READ", False)


@pytest.mark.parametrize("watch", [(), ("--watch",)])
def test_a_duplicate_of_an_intent_is_told_by_the_id_of_the_one_that_waits(
    watch: tuple[str, ...], laneway: "Run", center: "StandIn"
) -> None:
    center.answers["POST /commands"] = command("PENDING")
    center.answers[f"GET /commands/{ID}/stream"] = sent((0, "end", command()))
    ended = laneway("command", "submit", "--device", "1", "--point", "2", "--merge", "reject_duplicate", *watch)
    assert ended.code == 0
    assert ended.out.startswith(f"{ID} is PENDING")
    assert ended.errors == f"nothing new was stored: this one waits ({ID}, of the same intent)\n"


def test_it_is_watched_over_losses_until_it_is_final(laneway: "Run", center: "StandIn") -> None:
    answers: Iterator[httpx.Response | Exception] = iter(
        [
            sent((1, "line", line("STORED", None, "PENDING")), (2, "line", line("CLAIMED", "PENDING", "DISPATCHING"))),
            httpx.ConnectError("gone"),
            sent((0, "stopping", {})),
            sent((3, "line", line("SUCCESS", "SENT", "SUCCESS")), (0, "end", command(responseValue="1"))),
        ]
    )

    def answer(_request: httpx.Request) -> httpx.Response:
        given = next(answers)
        if isinstance(given, Exception):
            raise given
        return given

    center.answers[f"GET /commands/{ID}/stream"] = answer
    ended = laneway("command", "watch", ID)
    assert (ended.code, ended.errors) == (0, "")
    assert [each.split()[2] for each in ended.out.splitlines()[:-1]] == ["STORED", "CLAIMED", "SUCCESS"]
    assert ended.out.splitlines()[-1] == "SUCCESS, answer 1"
    assert [request.headers.get("Last-Event-ID") for request in center.asked] == [None, "2", "2", "2"]


@pytest.mark.parametrize(("status", "code"), [("SUCCESS", 0), ("FAILED", 1), ("EXPIRED", 1)])
def test_the_exit_code_of_watch_is_its_end(status: str, code: int, laneway: "Run", center: "StandIn") -> None:
    center.answers[f"GET /commands/{ID}/stream"] = sent((0, "end", command(status)))
    ended = laneway("command", "watch", ID, "--output", "json")
    assert ended.code == code
    assert json.loads(ended.out)["status"] == status


def test_watch_ends_at_a_review_but_not_at_one_that_is_over(laneway: "Run", center: "StandIn") -> None:
    lines = (1, "line", line("DUE", "SENT", "MANUAL_REVIEW")), (2, "line", line("REQUEUED", "MANUAL_REVIEW", "PENDING"))
    center.answers[f"GET /commands/{ID}/stream"] = sent(*lines, (0, "end", command()))
    center.answers[f"GET /commands/{ID}"] = command("MANUAL_REVIEW")
    ended = laneway("command", "watch", ID)
    assert ended.code == 1
    assert f"laneway review show {ID}" in ended.reason
    center.answers[f"GET /commands/{ID}"] = command()
    assert laneway("command", "watch", ID).code == 0


def test_watch_gives_up_on_a_center_that_stays_away(laneway: "Run", center: "StandIn") -> None:
    center.down = True
    ended = laneway("command", "watch", ID)
    assert ended.code == 3
    assert "CENTER_AWAY" in ended.reason
    center.down = False
    center.answers[f"GET /commands/{ID}/stream"] = problem(404, "COMMAND_UNKNOWN", f"no command {ID} is known")
    assert (ended := laneway("command", "watch", ID)).code == 1
    assert ended.reason == f"laneway: COMMAND_UNKNOWN: no command {ID} is known"


def test_watch_is_patient_with_a_center_that_was_there(
    laneway: "Run", center: "StandIn", monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter(range(0, 10_000, 10))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(now)))
    answers: Iterator[httpx.Response | None] = iter([sent((1, "line", line("STORED", None, "PENDING"))), *[None] * 99])

    def answer(request: httpx.Request) -> httpx.Response:
        if (given := next(answers)) is None:
            raise httpx.ConnectError("gone", request=request)
        return given

    center.answers[f"GET /commands/{ID}/stream"] = answer
    ended = laneway("command", "watch", ID)
    assert ended.code == 3
    tries, last = ended.errors.splitlines()
    assert "trying for 90 s to follow the command again" in tries
    assert last.startswith("laneway: CENTER_AWAY: ")
    assert f"the command itself goes on; to follow it again: laneway command watch {ID}" in last
    assert len(center.asked) == 1 + 10


def test_events_are_read_as_they_are_sent() -> None:
    def lines() -> Iterator[str]:
        yield from [": heartbeat", "", "id: 7", "event: line", 'data: {"a":', "data: 1}", "", "event: end", "data: {}"]

    assert list(events(lines())) == [Event("line", {"a": 1}, "7")], "the last one is unfinished"


def test_a_command_is_shown_with_its_timeline(laneway: "Run", center: "StandIn") -> None:
    center.answers[f"GET /commands/{ID}"] = command("SENT")
    center.answers[f"GET /commands/{ID}/events"] = {"events": [line("STORED", None, "PENDING")]}
    ended = laneway("command", "get", ID, "--events", COLUMNS="80")
    assert ended.code == 0
    assert "WRITE point 2048 of device 1024" in ended.out
    assert "so it was" in ended.out
    assert max(map(len, ended.out.splitlines())) <= 80
    said = json.loads(laneway("command", "get", ID, "--events", "--output", "json").out)
    assert (said["status"], len(said["events"])) == ("SENT", 1)


def test_waiting_asks_again_until_the_time_is_over(laneway: "Run", center: "StandIn") -> None:
    center.answers[f"GET /commands/{ID}"] = command("SENT")
    assert laneway("command", "get", ID, "--wait", "70").code == 0
    assert [float(request.url.params["wait"]) for request in center.asked] == [30, 30, 10]


def test_the_list_fits_and_goes_over_pages(laneway: "Run", center: "StandIn") -> None:
    def page(request: httpx.Request) -> Any:
        assert request.url.params.get_list("status") == ["FAILED", "TIMEOUT"]
        first = "cursor" not in request.url.params
        many = int(request.url.params["limit"])
        listed = [command("MANUAL_REVIEW", deviceId=10**9, errorCode="NO_ANSWER_AT_ALL_EVER")] * min(many, 500)
        return {"commands": listed, "nextCursor": "9" if first else None}

    center.answers["GET /commands"] = page
    chosen = ("command", "list", "--status", "FAILED", "--status", "TIMEOUT", "--limit", "600")
    ended = laneway(*chosen, COLUMNS="80")
    assert ended.code == 0
    lines = ended.out.splitlines()
    assert len(lines) == 2 * 601, "there is no room for all of it in one line"
    assert max(map(len, lines)) <= 80
    assert " ".join(lines[0:2]).split() == ["command", "status", "device", "point", "type", "age", "error"]
    for first, second in zip(lines[2::2], lines[3::2], strict=True):
        assert [*first.split()[:4]] == [ID, "MANUAL_REVIEW", str(10**9), "2048"]
        assert second.startswith("    ")
    piped = laneway(*chosen, COLUMNS="")
    assert all(each.endswith("NO_ANSWER_AT_ALL_EVER") for each in piped.out.splitlines()[1:])
    assert len(json.loads(laneway(*chosen, "--output", "json").out)["commands"]) == 600


def test_cancelling_too_late_is_refused(laneway: "Run", center: "StandIn") -> None:
    center.answers[f"POST /commands/{ID}/cancel"] = command("CANCELLED")
    ended = laneway("command", "cancel", ID, "--operator", "duty", "--reason", "wrong door")
    assert (ended.code, ended.out) == (0, f"{ID} is CANCELLED\n")
    assert (center.asked[0].headers["X-Operator"], center.bodies[0]) == ("duty", {"reason": "wrong door"})
    center.answers[f"POST /commands/{ID}/cancel"] = problem(409, "TOO_LATE", "a driver has begun")
    assert (ended := laneway("command", "cancel", ID)).code == 1
    assert ended.reason == "laneway: TOO_LATE: a driver has begun"


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, "0s"), (99, "99s"), (100, "2m"), (5_999, "100m"), (6_000, "2h"), (400_000, "5d"), (-90, "-90s"), (None, "")],
)
def test_spans_are_short(seconds: float | None, said: str) -> None:
    assert span(seconds) == said
    assert age(None) == ""


def test_a_cell_is_one_line() -> None:
    values = [None, True, "a\nb", [1, None, "x"], {"a": 1}, 1.0]
    assert [cell(value) for value in values] == ["", "yes", "a b", "1, , x", '{"a":1}', "1"]
