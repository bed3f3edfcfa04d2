import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from laneway_simulator.api import build_app
from laneway_simulator.link import MqttLink
from laneway_simulator.settings import SimulatorSettings
from laneway_simulator.topics import lock_topics
from unit.simulator.stage import COMMAND, Stage, stage


@pytest.fixture
async def at() -> AsyncIterator[Stage]:
    async with stage() as made:
        yield made


@pytest.fixture
async def link() -> MqttLink:
    return MqttLink(SimulatorSettings(), topics=lock_topics())  # never run: never ready


@pytest.fixture
async def http(at: Stage, link: MqttLink) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(build_app(at.fleet, link))
    async with httpx.AsyncClient(transport=transport, base_url="http://simulator") as client:
        yield client


def problem(response: httpx.Response) -> tuple[int, str]:
    assert response.headers["content-type"] == "application/problem+json"
    document = response.json()
    assert document["status"] == response.status_code
    assert document["title"]
    assert document["detail"]
    return response.status_code, document["code"]


async def test_a_lock_exists_by_being_addressed_or_put(at: Stage, http: httpx.AsyncClient) -> None:
    assert problem(await http.get("/devices/A100")) == (404, "DEVICE_UNKNOWN")
    assert (await http.get("/devices/A100/journal")).json()["entries"] == []
    at.tell("A100")
    await at.clock.run_dry()
    put = await http.put("/devices/B200", json={"points": {"battery": "87"}})

    device = (await http.get("/devices/A100")).json()
    assert device["points"] == {"lock": "1", "unlock": "0"}
    assert device["counts"] == {"received": 1, "executed": 1, "answered": 1, "ignored": 0}
    assert put.json()["points"] == {"battery": "87", "unlock": "0"}
    assert (await http.put("/devices/C300")).status_code == 200
    listed = (await http.get("/devices", params={"after": 1, "limit": 1})).json()
    assert (listed["total"], [each["sn"] for each in listed["devices"]]) == (3, ["B200"])


async def test_the_journal_of_a_lock_and_of_all(at: Stage, http: httpx.AsyncClient) -> None:
    at.tell("A100")
    at.tell("B200")
    await at.clock.run_dry()

    own = (await http.get("/devices/A100/journal", params={"event": "executed"})).json()
    assert (own["sn"], own["cutEntries"]) == ("A100", 0)
    assert [(e["event"], e["commandId"], e["attempt"], e["value"]) for e in own["entries"]] == [
        ("executed", COMMAND, 1, "1")
    ]
    every = (await http.get("/journal")).json()
    numbers = [entry["seq"] for entry in every["entries"]]
    assert numbers == sorted(numbers) == list(range(1, 7))
    assert every["lastSeq"] == 6
    rest = (await http.get("/journal", params={"since": 2, "event": "answered", "limit": 1})).json()["entries"]
    assert [entry["event"] for entry in rest] == ["answered"]

    assert (await http.delete("/journal")).status_code == 204
    assert (await http.get("/journal")).json() == {"entries": [], "lastSeq": 6, "cutEntries": 0}


@pytest.mark.parametrize(
    "asked",
    [
        {"refuse": True, "times": 2},
        {"busy": True},
        {"silent": "before", "latencyMs": 5.0},
        {"silent": "after"},
        {"duplicateAck": True, "lateAckMs": 1500.0},
        {},
    ],
)
async def test_a_behaviour_is_set_shown_and_withdrawn(http: httpx.AsyncClient, asked: dict[str, Any]) -> None:
    normal = {
        "latencyMs": None,
        "refuse": False,
        "busy": False,
        "silent": None,
        "duplicateAck": False,
        "lateAckMs": 0.0,
        "times": None,
    }
    put = await http.put("/devices/A100/behaviour", json=asked)

    assert put.json() == normal | asked
    assert (await http.get("/devices/A100")).json()["behaviour"] == normal | asked
    assert (await http.delete("/devices/A100/behaviour")).status_code == 204
    assert (await http.get("/devices/A100")).json()["behaviour"] is None
    assert (await http.delete("/devices/nobody/behaviour")).status_code == 204


@pytest.mark.parametrize(
    ("method", "path", "body", "expected"),
    [
        ("PUT", "/devices/A100/behaviour", b"{", (400, "MALFORMED_JSON")),
        ("PUT", "/devices/A100/behaviour", b"[]", (422, "VALIDATION")),
        ("PUT", "/devices/A100/behaviour", b"", (422, "VALIDATION")),
        ("PUT", "/devices/A100/behaviour", b'{"refuse":true,"busy":true}', (422, "VALIDATION")),
        ("PUT", "/devices/A100/behaviour", b'{"silent":"never"}', (422, "VALIDATION")),
        ("PUT", "/devices/A100/behaviour", b'{"latencyMs":-1}', (422, "VALIDATION")),
        ("PUT", "/devices/A100/behaviour", b'{"latencyMs":NaN}', (422, "VALIDATION")),
        ("PUT", "/devices/A100/behaviour", b'{"times":0}', (422, "VALIDATION")),
        ("PUT", "/devices/A100/behaviour", b'{"latency":5}', (422, "VALIDATION")),
        ("PUT", "/devices/A100/behaviour", b"\xff\xfe", (400, "MALFORMED_JSON")),
        ("PUT", "/devices/A%2B/behaviour", b"{}", (422, "VALIDATION")),
        ("PUT", "/devices/A100", b'{"points":{"lock":1}}', (422, "VALIDATION")),
        ("PUT", "/devices/A100", b'{"points":{"unlock":"1"}}', (422, "VALIDATION")),
        ("GET", "/journal?event=slept", b"", (422, "VALIDATION")),
        ("GET", "/journal?limit=0", b"", (422, "VALIDATION")),
        ("GET", "/nothing", b"", (404, "NOT_FOUND")),
        ("PATCH", "/journal", b"", (405, "METHOD_NOT_ALLOWED")),
        ("POST", "/devices/A100/acks", b"x" * 65_537, (413, "TOO_LARGE")),
        ("POST", "/devices/A100/acks", b"x", (503, "BROKER_AWAY")),
        ("GET", "/readyz", b"", (503, "NOT_READY")),
    ],
)
async def test_bad_requests_are_problems(
    http: httpx.AsyncClient, method: str, path: str, body: bytes, expected: tuple[int, str]
) -> None:
    response = await http.request(method, path, content=body, headers={"content-type": "application/json"})
    assert problem(response) == expected


async def test_openapi_and_health(http: httpx.AsyncClient) -> None:
    document = (await http.get("/openapi.json")).json()

    assert "/devices/{sn}/journal" in document["paths"]
    assert "JournalEntry" in json.dumps(document)
    assert (await http.get("/healthz")).json() == {"status": "ok"}
