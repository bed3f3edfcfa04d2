"""The command line against a center made of a function: no network."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from laneway_center.cli import client
from support.command_line import Ended, run_here


@dataclass
class StandIn:
    """Answers by method and path; keeps what was asked. What it has no answer to is 404, as an unknown id is."""

    answers: dict[str, Any] = field(default_factory=dict)
    asked: list[httpx.Request] = field(default_factory=list)
    down: bool = False

    def handle(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        if self.down:
            raise httpx.ConnectError("Connection refused", request=request)
        answer = self.answers.get(f"{request.method} {request.url.path}")
        if callable(answer):
            answer = answer(request)
        if isinstance(answer, httpx.Response):
            return answer
        if answer is None:
            return problem(404, "THING_UNKNOWN", "no such thing is known")
        return httpx.Response(200, json=answer)

    @property
    def bodies(self) -> list[Any]:
        """Of all requests that had one."""
        return [json.loads(request.content) for request in self.asked if request.content]


def problem(status: int, code: str, detail: str) -> httpx.Response:
    """As the center refuses."""
    said = {"type": "about:blank", "title": "", "status": status, "code": code, "detail": detail}
    return httpx.Response(status, json=said, headers={"content-type": "application/problem+json"})


@pytest.fixture
def center(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    stand_in = StandIn()
    monkeypatch.setattr(client, "transport", lambda: httpx.MockTransport(stand_in.handle))
    return stand_in


Run = Callable[..., Ended]


@pytest.fixture
def laneway(center: StandIn, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command here; keywords are variables of the environment."""

    def run(*arguments: str, **given: str) -> Ended:
        return run_here(arguments, monkeypatch, capsys, **given)

    return run
