"""The HTTP doors on a real database: what is accepted, what is refused, and that a refusal stores nothing."""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from laneway_center.app import Center, build_app
from laneway_center.settings import CenterSettings
from support.doors import open_doors
from support.stored import LEVEL, SERIAL, beat, books_balance, register, rows, run

DEVICE = 77


@pytest.fixture(scope="module")
async def http(engine: AsyncEngine, database_url: str) -> AsyncIterator[httpx.AsyncClient]:
    await register(engine, [DEVICE, 78, 79], driver="web")
    async with open_doors(database_url) as client:
        yield client


def write(value: Any = 5, **fields: Any) -> dict[str, Any]:
    return {"deviceId": DEVICE, "pointId": LEVEL, "type": "WRITE", "value": value} | fields


async def stored(engine: AsyncEngine) -> int:
    return int((await rows(engine, "SELECT count(*) FROM point_command"))[0][0])


async def test_accepted_then_shown_with_its_timeline(http: httpx.AsyncClient) -> None:
    accepted = await http.post("/commands", json=write())
    assert accepted.status_code == 202
    where = accepted.headers["location"]
    assert where == f"/commands/{accepted.json()['commandId']}"
    shown = (await http.get(where)).json()
    assert (shown["status"], shown["final"], shown["value"]) == ("PENDING", False, "5")
    events = (await http.get(f"{where}/events")).json()["events"]
    assert [(e["kind"], e["from"], e["to"]) for e in events] == [("STORED", None, "PENDING")]
    assert (await http.get(where.upper().replace("/COMMANDS", "/commands"))).status_code == 200


async def test_a_change_of_the_registry_by_an_operator_is_written_down(http: httpx.AsyncClient) -> None:
    who = {"X-Operator": "kim", "X-Reason": "new lock"}
    await http.put("/registry/drivers/audited", json={"title": "x"}, headers=who)
    await http.put("/registry/drivers/unheard", json={"title": "x"})
    acts = (await http.get("/audit", params={"action": "registry.put"})).json()
    [act] = next(iter(value for value in acts.values() if isinstance(value, list)))
    assert (act["operator"], act["why"], act["subject"]) == ("kim", "new lock", "drivers: audited")


async def test_without_an_id_each_is_its_own(http: httpx.AsyncClient) -> None:
    first, second = [(await http.post("/commands", json=write())).json()["commandId"] for _ in range(2)]
    assert first != second
    assert uuid.UUID(first).version == 7


async def test_the_same_again_is_the_same_command(http: httpx.AsyncClient, engine: AsyncEngine) -> None:
    body = write(commandId=str(uuid.uuid4()))
    assert (await http.post("/commands", json=body)).status_code == 202
    before = await stored(engine)
    again = await http.post("/commands", json=body | {"commandId": body["commandId"].upper()})
    assert (again.status_code, again.json()["commandId"]) == (200, body["commandId"])
    other = await http.post("/commands", json=body | {"value": 6})
    assert (other.status_code, other.json()["code"]) == (409, "COMMAND_ID_REUSED")
    assert await stored(engine) == before


async def test_the_same_twenty_times_at_once(http: httpx.AsyncClient) -> None:
    body = write(commandId=str(uuid.uuid4()))
    answers = await asyncio.gather(*(http.post("/commands", json=body) for _ in range(20)))
    assert sorted(answer.status_code for answer in answers) == [200] * 19 + [202]


async def test_another_tenant_sees_nothing(http: httpx.AsyncClient) -> None:
    where = (await http.post("/commands", json=write())).headers["location"]
    foreign = {"X-Tenant-Id": "2"}
    assert (await http.get(where, headers=foreign)).status_code == 404
    assert (await http.post("/commands", json=write(), headers=foreign)).json()["code"] == "DEVICE_UNKNOWN"


PAST = (datetime.now(UTC) - timedelta(seconds=1)).isoformat()
REFUSALS: list[tuple[Any, int, str]] = [
    (write(deviceId=404), 404, "DEVICE_UNKNOWN"),
    (write(pointId=404), 404, "POINT_UNKNOWN"),
    (write(deviceId=78), 409, "DEVICE_DISABLED"),
    (write(deviceId=79), 409, "POINT_DISABLED"),
    (write(pointId=SERIAL), 422, "POINT_READ_ONLY"),
    ({"deviceId": DEVICE, "pointId": 2, "type": "READ"}, 422, "POINT_WRITE_ONLY"),
    ({"deviceId": DEVICE, "pointId": SERIAL, "type": "READ", "value": 1}, 422, "VALUE_UNEXPECTED"),
    ({"deviceId": DEVICE, "pointId": LEVEL, "type": "WRITE"}, 422, "VALUE_MISSING"),
    (write(101), 422, "VALUE_REFUSED"),
    (write("ten"), 422, "VALUE_REFUSED"),
    (write(1.5), 422, "VALUE_REFUSED"),
    (write(value=True), 422, "VALUE_REFUSED"),
    (write({"a": 1}), 422, "VALUE_REFUSED"),
    (write("9" * 5000, pointId=2), 422, "VALUE_REFUSED"),
    (write(10**400), 422, "VALIDATION"),
    (write("1\x00"), 422, "VALIDATION"),
    (write([1]), 422, "VALIDATION"),
    (write(expireAt=PAST), 422, "DEADLINE_PAST"),
    (write(expireIn=-1), 422, "VALIDATION"),
    (write(expireIn=1e8), 422, "DEADLINE_TOO_FAR"),
    (write(expireAt="2199-12-31T23:59:59Z"), 422, "DEADLINE_TOO_FAR"),
    (write(expireAt="2030-01-01T00:00:00"), 422, "VALIDATION"),
    (write(expireIn="30"), 422, "VALIDATION"),
    (write(occurredAt="0001-01-01T00:00:00+14:00"), 422, "VALIDATION"),
    (write(occurredAt="9999-12-31T23:59:59-14:00"), 422, "VALIDATION"),
    (write(expireIn=1, expireAt="2030-01-01T00:00:00Z"), 422, "VALIDATION"),
    (write(commandId="42"), 422, "VALIDATION"),
    (write(deviceId="77"), 422, "VALIDATION"),
    (write(deviceId=2**70), 422, "VALIDATION"),
    (write(priority=-1), 422, "VALIDATION"),
    (write(maxAttempts=0), 422, "VALIDATION"),
    (write(type="ERASE"), 422, "VALIDATION"),
    (write(colour="red"), 422, "VALIDATION"),
    (write(intentKey="\ud800"), 422, "VALIDATION"),
    ([], 422, "VALIDATION"),
    ("text", 422, "VALIDATION"),
    (None, 422, "VALIDATION"),
]


@pytest.fixture(scope="module")
async def some_disabled(engine: AsyncEngine, http: httpx.AsyncClient) -> None:
    await run(engine, "UPDATE device SET enabled = false WHERE device_id = 78")
    await run(engine, "UPDATE point SET enabled = false WHERE device_id = 79")


@pytest.mark.parametrize(("body", "status", "code"), REFUSALS)
async def test_refused_with_a_reason_and_nothing_stored(
    http: httpx.AsyncClient, engine: AsyncEngine, some_disabled: None, body: Any, status: int, code: str
) -> None:
    before = await stored(engine)
    as_json = {"content-type": "application/json"}
    answer = await http.post("/commands", content=json.dumps(body), headers=as_json)
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert len(answer.json()["detail"]) > 5
    assert "Traceback" not in answer.text
    assert await stored(engine) == before


@pytest.mark.parametrize(
    ("content", "kind", "status", "code"),
    [
        (b"{", "application/json", 400, "MALFORMED_JSON"),
        (b"\xff\xfe", "application/json", 400, "MALFORMED_JSON"),
        (b'{"deviceId":1}', "text/plain", 415, "CONTENT_TYPE"),
        (b'{"deviceId":1}', "", 415, "CONTENT_TYPE"),
        (b"a=b", "application/x-www-form-urlencoded", 415, "CONTENT_TYPE"),
        (b"[" * 100_000, "application/json", 400, "BAD_REQUEST"),
        (b'{"x":"' + b"y" * 17_000_000 + b'"}', "application/json", 413, "BODY_TOO_LARGE"),
    ],
)
async def test_what_is_not_json_is_refused(
    http: httpx.AsyncClient, content: bytes, kind: str, status: int, code: str
) -> None:
    for path in ("/commands", "/commands/batch"):
        answer = await http.post(path, content=content, headers={"content-type": kind} if kind else {})
        assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text[:300]


async def test_an_offline_driver_refuses_new_and_shows_known_commands(
    http: httpx.AsyncClient, engine: AsyncEngine
) -> None:
    known = write(commandId=str(uuid.uuid4()))
    assert (await http.post("/commands", json=known)).status_code == 202
    await beat(engine, "web", state="stopping")
    try:
        refused = await http.post("/commands", json=write())
        assert (refused.status_code, refused.json()["code"]) == (409, "DRIVER_OFFLINE")
        assert (await http.post("/commands", json=known)).status_code == 200
    finally:
        await beat(engine, "web")


async def test_a_batch_answers_for_each(http: httpx.AsyncClient, engine: AsyncEngine) -> None:
    same = write(commandId=str(uuid.uuid4()))
    items = [same, write(101), same, {"deviceId": DEVICE}, same | {"value": 9}, write(7), "rubbish"]
    answer = await http.post("/commands/batch", json={"commands": items[:-1]})
    body = answer.json()
    assert answer.status_code == 200, answer.text
    assert [item["httpStatus"] for item in body["results"]] == [202, 422, 200, 422, 409, 202]
    assert (body["accepted"], body["known"], body["refused"]) == (2, 1, 3)
    assert body["results"][1]["problem"]["code"] == "VALUE_REFUSED"
    assert body["results"][0]["command"]["commandId"] == same["commandId"]
    before = await stored(engine)
    bodies: list[dict[str, Any]] = [{"commands": items}, {"commands": []}, {"commands": [write()] * 1001}, {}]
    for bad in bodies:
        assert (await http.post("/commands/batch", json=bad)).status_code == 422
    assert await stored(engine) == before
    await books_balance(engine)


async def test_listing_filters_and_pages(http: httpx.AsyncClient, engine: AsyncEngine) -> None:
    await register(engine, [901], driver="web")
    made = [(await http.post("/commands", json=write(n, deviceId=901))).json()["commandId"] for n in range(5)]
    seen: list[str] = []
    cursor = None
    while True:
        page = (
            await http.get("/commands", params={"deviceId": 901, "limit": 2} | ({"cursor": cursor} if cursor else {}))
        ).json()
        seen += [command["commandId"] for command in page["commands"]]
        cursor = page["nextCursor"]
        if cursor is None:
            break
    assert seen == made[::-1]
    assert (await http.get("/commands", params={"deviceId": 901, "status": "SUCCESS"})).json()["commands"] == []
    assert len((await http.get("/commands", params={"deviceId": 901, "type": "WRITE"})).json()["commands"]) == 5
    future: dict[str, Any] = {"deviceId": 901, "from": "2100-01-01T00:00:00Z"}
    assert (await http.get("/commands", params=future)).json()["commands"] == []
    queries: list[dict[str, Any]] = [
        {"cursor": "x"},
        {"limit": 0},
        {"status": "LOST"},
        {"from": "yesterday"},
        {"to": "9999-12-31T23:59:59-14:00"},
        {"deviceId": "x"},
    ]
    for bad in queries:
        assert (await http.get("/commands", params=bad)).status_code == 422


async def test_unknown_commands_and_paths(http: httpx.AsyncClient) -> None:
    for path in (f"/commands/{uuid.uuid4()}", "/commands/42", "/commands/42/events", "/commands/%00"):
        answer = await http.get(path)
        assert (answer.status_code, answer.json()["code"]) == (404, "COMMAND_UNKNOWN")
    assert (await http.get("/nowhere")).json()["code"] == "NOT_FOUND"
    assert (await http.delete("/commands")).status_code == 405


DOCUMENT = """
drivers:
  - name: lake
devices:
  - deviceId: 5001
    deviceSn: L-5001
    driver: lake
    profile: ydlink-lock
    address: {host: 10.0.0.1, port: 502}
    points:
      - {pointId: 1, name: lock, enum: ["0", "1"], retrySafety: unsafe, ackTimeout: 2.5}
      - {pointId: 2, name: level, valueType: float, min: 0, max: 1, step: 0.1, access: R}
"""


async def test_import_export_and_single_entries(http: httpx.AsyncClient) -> None:
    yaml = {"content-type": "application/yaml"}
    imported = await http.post("/registry/import", content=DOCUMENT, headers=yaml)
    assert imported.json() == {"drivers": 1, "devices": 1, "points": 2, "lanes": 0}, imported.text
    device = (await http.get("/registry/devices/5001")).json()
    assert device["points"][0]["ackTimeout"] == 2.5
    assert device["address"] == {"host": "10.0.0.1", "port": 502}
    exported = (await http.get("/registry/export")).text
    assert "L-5001" in exported
    assert (await http.post("/registry/import", content=exported, headers=yaml)).status_code == 200
    assert (await http.get("/registry/export")).text == exported
    as_json = (await http.get("/registry/export", params={"format": "json"})).json()
    assert (await http.post("/registry/import", json=as_json)).status_code == 200
    changed = await http.put("/registry/devices/5001/points/2", json={"name": "level", "max": 3, "access": "RW"})
    assert (changed.status_code, changed.json()["max"]) == (200, 3)
    moved = await http.put("/registry/devices/5001", json={"deviceSn": "L-1", "driver": "lake"})
    assert (moved.json()["deviceSn"], len(moved.json()["points"])) == ("L-1", 2)
    drivers = {driver["name"]: driver["online"] for driver in (await http.get("/registry/drivers")).json()}
    assert (drivers["lake"], drivers["web"]) == (False, True)


@pytest.mark.parametrize(
    ("document", "status", "code"),
    [
        ("{", 400, "MALFORMED_DOCUMENT"),
        ("[]", 422, "VALIDATION"),
        ("devices: [{deviceId: 1}]", 422, "VALIDATION"),
        ("devices: [{deviceId: 6001, deviceSn: 'a/b', driver: web}]", 422, "VALIDATION"),
        ("devices: [{deviceId: 6001, deviceSn: X, driver: nobody}]", 409, "REGISTRY_CONFLICT"),
        ("devices: [{deviceId: 6001, deviceSn: SN77, driver: web}]", 409, "REGISTRY_CONFLICT"),
        ("drivers: [{name: a}, {name: a}]", 422, "VALIDATION"),
        ("!!python/object/apply:os.getcwd []", 400, "MALFORMED_DOCUMENT"),
        ("a: &a [*a]", 400, "MALFORMED_DOCUMENT"),
        ("a: &a [1]\nb: [*a, *a, *a]", 400, "MALFORMED_DOCUMENT"),
        ("devices: [{deviceId: 6001, deviceSn: X, driver: web, address: {a: {1: 2}}}]", 422, "VALIDATION"),
        (f"devices: [{{deviceId: 6001, deviceSn: X, driver: web, address: {{a: {'x' * 20000}}}}}]", 422, "VALIDATION"),
    ],
)
async def test_a_bad_document_stores_nothing(http: httpx.AsyncClient, document: str, status: int, code: str) -> None:
    answer = await http.post("/registry/import", content=document, headers={"content-type": "application/yaml"})
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
    assert (await http.get("/registry/devices/6001")).status_code == 404


async def test_openapi_has_examples_and_problem_documents(http: httpx.AsyncClient) -> None:
    document = (await http.get("/openapi.json")).json()
    assert document["components"]["schemas"]["SubmitBody"]["examples"]
    assert "application/problem+json" in document["paths"]["/commands"]["post"]["responses"]["409"]["content"]


async def test_health_and_metrics(http: httpx.AsyncClient) -> None:
    assert (await http.get("/healthz")).json() == {"status": "ok"}
    ready = await http.get("/readyz")
    assert ready.json()["checks"]["broker"] == "away", "said, though commands are accepted all the same"
    assert "laneway_commands_accepted_total" in (await http.get("/metrics")).text


async def test_without_its_database_it_says_so_at_once() -> None:
    center = Center(CenterSettings(database_url="postgresql://x:secret@127.0.0.1:1/x", roles="api"))
    worker = asyncio.ensure_future(center.intake.run())
    transport = httpx.ASGITransport(build_app(center), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://center") as client, asyncio.timeout(15):
        for answer in (await client.post("/commands", json=write()), await client.get(f"/commands/{uuid.uuid4()}")):
            assert (answer.status_code, answer.json()["code"]) == (503, "DATABASE_AWAY")
            assert "secret" not in answer.text
        assert (await client.get("/readyz")).status_code == 503
    worker.cancel()
    await asyncio.gather(worker, return_exceptions=True)
    await center.engine.dispose()


@pytest.mark.parametrize(
    "address", [{"a": "\x00"}, {"a": "\ud800"}, {"a": 2**64}, {"a": [[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]}]
)
async def test_an_address_that_cant_be_kept_is_refused(http: httpx.AsyncClient, address: dict[str, Any]) -> None:
    body = json.dumps({"deviceSn": "X9", "driver": "web", "address": address})
    answer = await http.put("/registry/devices/6002", content=body, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["code"]) == (422, "VALIDATION")


async def test_a_chunked_body_over_the_limit_is_refused_too(http: httpx.AsyncClient) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield b'{"x":"'
        for _ in range(20):
            yield b"y" * 1_000_000

    headers = {"content-type": "application/json"}
    for path in ("/commands", "/registry/import"):
        answer = await http.post(path, content=chunks(), headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (413, "BODY_TOO_LARGE")


async def test_a_twin_in_a_large_document_is_found_quickly(http: httpx.AsyncClient) -> None:
    devices = [{"deviceId": n, "deviceSn": f"T{n}", "driver": "web"} for n in [*range(10_000, 18_000), 10_000]]
    answer = await http.post("/registry/import", json={"devices": devices})
    assert (answer.status_code, answer.json()["code"]) == (422, "VALIDATION")
    assert "10000" in answer.json()["detail"]


async def test_many_devices_are_exported_page_by_page_and_come_back_the_same(http: httpx.AsyncClient) -> None:
    mine = {"X-Tenant-Id": "7"}
    points = [{"pointId": 1, "name": "level"}]
    devices = [{"deviceId": n, "deviceSn": f"P{n}", "driver": "web", "points": points} for n in range(1, 1202)]
    assert (await http.post("/registry/import", json={"devices": devices}, headers=mine)).status_code == 200
    as_yaml = (await http.get("/registry/export", headers=mine)).text
    as_json = (await http.get("/registry/export", params={"format": "json"}, headers=mine)).json()
    assert [device["deviceId"] for device in as_json["devices"]] == list(range(1, 1202))
    back = await http.post("/registry/import", content=as_yaml, headers=mine | {"content-type": "application/yaml"})
    assert back.json()["points"] == 1201
    page = (await http.get("/registry/devices", params={"after": 1200}, headers=mine)).json()
    assert [device["deviceId"] for device in page] == [1201]
