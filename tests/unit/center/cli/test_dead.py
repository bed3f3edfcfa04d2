import json
import os
import signal
import threading
import time
from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING, Any

import httpx
import pytest

if TYPE_CHECKING:
    from .conftest import Run, StandIn

WHO = ("--operator", "Ünal", "--reason", "driver was down")
AT = "2026-01-31T17:01:25.797000Z"


def entry(n: int, **other: Any) -> dict[str, Any]:
    return {
        "id": n, "kind": "command", "state": "open", "at": AT, "reason": "expired", "errorCode": "DEADLINE",
        "explanation": None, "driver": "mqtt", "deviceId": 1000 + n, "commandId": f"0190c3e2-7b1c-7000-8000-{n:012}",
        "endedAs": "EXPIRED", "attempt": 1, "commandStatus": "EXPIRED", "handledAt": None, "handledBy": None,
        "handledWhy": None,
    } | other  # fmt: skip


class Letters:
    """Entries 1 … `many`, of which each goes once; some are refused."""

    def __init__(self, many: int, refused: dict[int, tuple[str, str]] | None = None) -> None:
        self.open = {n: entry(n) for n in range(1, many + 1)}
        self.refused = refused or {}
        self.replayed: list[int] = []
        self.parts: list[int] = []
        self.after_part: Callable[[int], None] = lambda _: None

    def list(self, request: httpx.Request) -> Any:
        assert request.url.params["state"] == "open"
        ids = sorted(self.open, reverse=True)
        at, limit = int(request.url.params.get("cursor", 0)), int(request.url.params["limit"])
        more = str(at + limit) if at + limit < len(ids) else None
        return {"deadLetters": [self.open[n] for n in ids[at : at + limit]], "nextCursor": more}

    def groups(self, request: httpx.Request) -> Any:
        total = {"open": len(self.open), "replayed": len(self.replayed)}.get(request.url.params["state"], 0)
        group = {
            "reason": "expired",
            "driver": "mqtt",
            "errorCode": "DEADLINE",
            "count": total,
            "first": AT,
            "last": AT,
        }
        return {"total": total, "groups": [group] if total else []}

    def replay(self, request: httpx.Request) -> Any:
        body = json.loads(request.content)
        self.parts.append(len(body["ids"]))
        results = [self._one(n, dry=body["dryRun"]) for n in body["ids"]]
        self.after_part(len(self.parts))
        return {"replayed": 0, "refused": 0, "dryRun": body["dryRun"], "results": results}

    def _one(self, n: int, *, dry: bool) -> dict[str, Any]:
        code, detail = self.refused.get(n, ("", ""))
        if n not in self.open:
            code, detail = "ALREADY_REPLAYED", "by Ünal"
        if code:
            return {"id": n, "outcome": "refused", "problem": {"code": code, "detail": detail, "status": 409}}
        if not dry:
            del self.open[n]
            self.replayed.append(n)
        return {"id": n, "outcome": "would_replay" if dry else "replayed", "problem": None, "warnings": []}

    def behind(self, center: "StandIn") -> "Letters":
        center.answers |= {
            "GET /dead-letters": self.list,
            "GET /dead-letters/groups": self.groups,
            "POST /dead-letters/replay": self.replay,
        }
        return self


@pytest.fixture
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that runs fast enough for any rate."""
    ticks = count(step=1e6)
    monkeypatch.setattr(time, "monotonic", lambda: float(next(ticks)))


def test_a_filter_is_replayed_oldest_first_and_a_second_time_nothing_is_left(
    laneway: "Run", center: "StandIn", hurry: None
) -> None:
    letters = Letters(1203).behind(center)
    ended = laneway("dead", "replay", "--why-dead", "expired", "--driver", "mqtt", "--rate", "1000", *WHO)
    assert (ended.code, ended.out, ended.errors) == (0, "1,203 replayed, 0 refused.\n", "")
    assert letters.replayed == list(range(1, 1204))
    assert max(letters.parts) == 100
    assert center.asked[0].url.params["reason"] == "expired"
    assert all((b"X-Operator", "Ünal".encode()) in request.headers.raw for request in center.asked)
    assert center.bodies[0] | {"ids": []} == {"reason": "driver was down", "force": False, "dryRun": False, "ids": []}

    again = laneway("dead", "replay", "--why-dead", "expired", "--driver", "mqtt", *WHO)
    assert again.code == 0
    assert again.out == "Nothing to replay: no open dead letter matches (1,203 replayed before).\n"
    assert len(letters.replayed) == 1203


def test_the_rate_makes_the_parts_small_and_the_pauses_right(
    laneway: "Run", center: "StandIn", monkeypatch: pytest.MonkeyPatch
) -> None:
    now, waits = [0.0], []

    def wait(_self: object, seconds: float) -> bool:
        waits.append(seconds)
        now[0] += seconds
        return False

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(threading.Event, "wait", wait)
    letters = Letters(100).behind(center)
    assert laneway("dead", "replay", "--all", "--rate", "50", *WHO).code == 0
    assert letters.parts == [10] * 10
    assert sum(waits) == pytest.approx(1.8)


def test_what_is_refused_is_counted_with_an_example_and_exit_code_1(
    laneway: "Run", center: "StandIn", hurry: None
) -> None:
    refused = {n: ("FORCE_NEEDED", f"{n} is unsafe") for n in (3, 5)} | {7: ("NOT_REPLAYABLE", "it is SUCCESS")}
    Letters(10, refused).behind(center)
    ended = laneway("dead", "replay", "--all", *WHO)
    assert (ended.code, ended.errors) == (1, "")
    assert ended.out == (
        "7 replayed, 3 refused.\n"
        "  2 FORCE_NEEDED, such as 3: 3 is unsafe\n"
        "  1 NOT_REPLAYABLE, such as 7: it is SUCCESS\n"
    )


def test_an_id_is_replayed_once_and_the_second_try_says_so(laneway: "Run", center: "StandIn", hurry: None) -> None:
    letters = Letters(3).behind(center)
    assert laneway("dead", "replay", "2", "2", *WHO).out == "1 replayed, 0 refused.\n"
    again = laneway("dead", "replay", "2", "--output", "json", *WHO)
    assert again.code == 1
    said = json.loads(again.out)
    assert (said["done"], said["refused"], said["results"][0]["problem"]["code"]) == (0, 1, "ALREADY_REPLAYED")
    assert letters.replayed == [2]


def test_a_dry_run_needs_nobody_and_changes_nothing(laneway: "Run", center: "StandIn") -> None:
    letters = Letters(150).behind(center)
    ended = laneway("dead", "replay", "--all", "--dry-run")
    assert (ended.code, ended.out) == (0, "150 would be replayed, 0 refused.\n")
    assert letters.replayed == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_between_two_parts_and_again_goes_on(
    number: signal.Signals, laneway: "Run", center: "StandIn", hurry: None
) -> None:
    letters = Letters(100).behind(center)

    def strike(part: int) -> None:
        if part == 4:
            os.kill(os.getpid(), number)

    letters.after_part = strike
    before = signal.getsignal(number)
    ended = laneway("dead", "replay", "--all", *WHO)
    assert (ended.code, ended.out) == (130, "40 replayed, 0 refused.\n")
    assert ended.reason == "laneway: INTERRUPTED: 60 not tried; the same again goes on"
    assert signal.getsignal(number) == before
    assert laneway("dead", "replay", "--all", *WHO).out == "60 replayed, 0 refused.\n"
    assert letters.replayed == list(range(1, 101))


def test_a_center_that_goes_away_in_the_middle_leaves_a_count(laneway: "Run", center: "StandIn", hurry: None) -> None:
    letters = Letters(100).behind(center)
    letters.after_part = lambda part: setattr(center, "down", part == 3)
    ended = laneway("dead", "replay", "--all", *WHO)
    assert (ended.code, ended.out) == (3, "30 replayed, 0 refused.\n")
    assert ended.errors.splitlines()[0] == "70 not tried, or nobody knows; the same again doubles none"
    assert "CENTER_AWAY" in ended.errors.splitlines()[1]


@pytest.mark.parametrize("columns", ["80", ""])
def test_the_list_counts_groups_and_shows_the_newest(laneway: "Run", center: "StandIn", columns: str) -> None:
    letters = Letters(30).behind(center)
    letters.open[31] = entry(31, driver=None, deviceId=None, commandId=None, reason="unreadable", errorCode=None)
    ended = laneway("dead", "list", COLUMNS=columns)
    assert (ended.code, ended.errors) == (0, "")
    out = ended.out.splitlines()
    assert out[0].split() == ["why", "dead", "driver", "error", "count", "first", "last"]
    assert "31 in all, the newest 20:" in out
    newest = next(line.split() for line in out if "unreadable" in line)
    assert newest[0] == "31"
    assert max(map(len, out)) <= 80 or not columns
    assert f"0190c3e2-7b1c-7000-8000-{30:012}" in ended.out, "an id is whole, however narrow it is"
    said = json.loads(laneway("dead", "list", "--output", "json", "--limit", "5").out)
    assert (said["total"], len(said["deadLetters"])) == (31, 5)
    assert "deadLetters" not in json.loads(laneway("dead", "list", "--group", "--output", "json").out)


def test_one_letter_is_shown_with_all_it_has(laneway: "Run", center: "StandIn") -> None:
    letter = {
        "id": 5, "receivedAt": AT, "reason": "rejected", "explanation": "schemaVersion 2", "queue": "dc3.q.x",
        "routingKey": "dc3.r.x", "attempt": 1, "body": "{}", "bodyEncoding": "text", "bodyBytes": 2, "bodyCut": False,
        "headers": {"traceparent": "00", "x-death": []},
        "xDeath": [{"reason": "rejected", "queue": "dc3.q.x", "count": 1, "time": AT, "exchange": "dc3.e.x",
                    "routingKeys": ["dc3.r.x"]}],
    }  # fmt: skip
    handled = {"state": "replayed", "handledAt": AT, "handledBy": "duty", "handledWhy": "why not"}
    center.answers["GET /dead-letters/17"] = entry(17, **handled) | {"command": None, "events": [], "letters": [letter]}
    ended = laneway("dead", "show", "17")
    assert (ended.code, ended.errors) == (0, "")
    for said in ("replayed by duty, 2026-01-31 17:01:25Z: why not", "schemaVersion 2", "traceparent", "dc3.e.x"):
        assert said in ended.out
    assert json.loads(laneway("dead", "show", "17", "--output", "json").out)["id"] == 17
