"""Lanes over HTTP: what stands where, why, and what an operator does about it."""

from collections.abc import AsyncIterator
from datetime import timedelta
from itertools import count
from typing import Any

import httpx
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from laneway_center.store.claims import ClaimTerms, claim
from laneway_center.store.evidence import JudgeTerms
from laneway_shared.judgement import Policy
from laneway_shared.lifecycle import ResultKind
from support.doors import open_doors
from support.lanes import GRACE, absent, tell
from support.stored import LEVEL, UNLOCK, beat, register, run

K = ResultKind
SHIFT = {"X-Operator": "shift"}
WHY = {"reason": "test"}
_numbers = count(900_001)


@pytest.fixture(scope="module")
async def http(engine: AsyncEngine, database_url: str) -> AsyncIterator[httpx.AsyncClient]:
    async with open_doors(database_url) as client:
        yield client


class Lane:
    """A device with a lane and a driver of its own, acted on through HTTP."""

    def __init__(self, http: httpx.AsyncClient, engine: AsyncEngine) -> None:
        self.http, self.engine = http, engine
        self.device = next(_numbers)
        self.driver, self.key = f"doors{self.device}", f"device:{self.device}"

    async def registered(self, **device: Any) -> "Lane":
        await register(self.engine, [self.device], driver=self.driver, **device)
        return self

    async def submit(self, point: int = LEVEL, **fields: Any) -> str:
        body = {"deviceId": self.device, "pointId": point, "type": "WRITE", "value": "1", "expireIn": 600} | fields
        answer = await self.http.post("/commands", json=body)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["commandId"])

    async def claimed(self, *profiles: str, room: int = 10) -> list[Any]:
        terms = ClaimTerms(by="t", window_ms=10_000, grace_ms=round(GRACE.total_seconds() * 1000), most=10)
        return await claim(self.engine, self.driver, room=room, profiles=profiles, terms=terms)

    async def explained(self) -> dict[str, Any]:
        answer = await self.http.get(f"/lanes/{self.key}/explain")
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def act(self, verb: str, **given: Any) -> httpx.Response:
        return await self.http.post(f"/lanes/{self.key}/{verb}", **({"json": WHY, "headers": SHIFT} | given))


@pytest.fixture
async def lane(http: httpx.AsyncClient, engine: AsyncEngine) -> Lane:
    return await Lane(http, engine).registered()


def kinds(explained: dict[str, Any]) -> list[str]:
    assert all(each["says"] and each["wouldFree"] for each in explained["blockers"])
    if explained["blockers"]:
        assert (explained["says"], explained["wouldFree"]) == (
            explained["blockers"][0]["says"],
            explained["blockers"][0]["wouldFree"],
        )
    return [each["kind"] for each in explained["blockers"]]


async def test_a_free_lane_says_what_goes_next(lane: Lane) -> None:
    empty = await lane.explained()
    assert (kinds(empty), empty["says"], empty["head"]) == ([], "free; nothing waits", None)
    one, two = await lane.submit(), await lane.submit()
    ready = await lane.explained()
    assert kinds(ready) == []
    assert ready["says"].startswith(f"free; {one} goes next")
    assert (ready["next"], ready["waiting"], ready["waitingByPriority"]) == ([one, two], 2, {"1": 2})


async def test_in_flight_then_waiting_for_the_answer_then_in_back_off(lane: Lane) -> None:
    one = await lane.submit()
    await lane.claimed()
    flying = await lane.explained()
    assert (kinds(flying), flying["inFlight"]["commandId"]) == (["in_flight"], one)
    await tell(lane.engine, one, K.TRANSMITTED)
    await lane.submit()
    waiting = await lane.explained()
    assert kinds(waiting) == ["awaiting_answer"]
    assert "answer is due at" in waiting["says"]
    assert "the device's answer" in waiting["wouldFree"]
    later = JudgeTerms(grace=GRACE, policy=Policy(base=timedelta(minutes=1)), chance=lambda: 0.0)
    await tell(lane.engine, one, K.FAILED, retryable=True, terms=later)
    backing_off = await lane.explained()
    assert kinds(backing_off) == ["back_off"]
    assert (backing_off["head"]["commandId"], len(backing_off["next"])) == (one, 1)
    assert backing_off["inFlight"] is None, "it waits"


async def test_a_held_lane_says_who_holds_it_and_why(lane: Lane) -> None:
    await lane.submit()
    assert (await lane.act("hold", json={"reason": "door is being repaired"})).json()["operatorHold"] == "shift"
    held = await lane.explained()
    assert kinds(held) == ["operator_hold"]
    assert "shift holds it since" in held["says"]
    assert "door is being repaired" in held["says"]
    assert held["wouldFree"] == "an operator's release"
    again = await lane.act("hold")
    assert (again.status_code, again.json()["code"]) == (409, "LANE_HELD")
    assert (await lane.act("release")).json()["operatorHold"] is None
    assert (await lane.act("release")).json()["code"] == "LANE_NOT_HELD"
    assert kinds(await lane.explained()) == []


async def test_a_driver_that_is_offline_or_switched_off(lane: Lane) -> None:
    await lane.submit()
    await beat(lane.engine, lane.driver, state="stopping")
    assert kinds(await lane.explained()) == ["driver_offline"]
    await lane.http.put(f"/registry/drivers/{lane.driver}", json={"enabled": False})
    assert kinds(await lane.explained()) == ["driver_disabled", "driver_offline"]


async def test_a_missing_listener_before_and_after_the_call(http: httpx.AsyncClient, engine: AsyncEngine) -> None:
    lane = await Lane(http, engine).registered(profile="ydlink-lock")
    one = await lane.submit()
    assert kinds(await lane.explained()) == ["listener_offline"]
    assert await lane.claimed() == []
    await run(engine, "UPDATE lane SET ready_at = now() WHERE lane_key = :k", k=lane.key)
    assert await lane.claimed("ydlink-lock")
    await tell(engine, one, K.TRANSMITTED)
    assert kinds(await lane.explained()) == ["awaiting_answer", "listener_offline"]


async def test_a_review_that_closes_the_lane(http: httpx.AsyncClient, engine: AsyncEngine) -> None:
    lane = await Lane(http, engine).registered(review_policy="hold")
    doubtful, _ = await lane.submit(UNLOCK), await lane.submit(UNLOCK)
    await lane.claimed()
    await tell(engine, doubtful, K.STARTED)
    await absent(engine, doubtful)
    closed = await lane.explained()
    assert kinds(closed) == ["review"]
    assert doubtful in closed["says"]
    assert [each["commandId"] for each in closed["reviews"]] == [doubtful]
    assert (await lane.act("skip")).status_code == 200
    assert kinds(await lane.explained()) == []


async def test_what_is_switched_off_and_a_driver_without_room(lane: Lane) -> None:
    await lane.submit()
    await run(lane.engine, "UPDATE point SET enabled = false WHERE device_id = :d", d=lane.device)
    await run(lane.engine, "UPDATE device SET enabled = false WHERE device_id = :d", d=lane.device)
    await run(lane.engine, "UPDATE driver_instance SET capacity = 0 WHERE service = :s", s=lane.driver)
    assert kinds(await lane.explained()) == ["device_disabled", "point_disabled", "no_room"]


async def test_lists_and_policies(http: httpx.AsyncClient, engine: AsyncEngine) -> None:
    lane = await Lane(http, engine).registered(retry="relaxed")
    await lane.submit()
    await lane.submit()
    put = await http.post(
        "/registry/import",
        content=f'{{"lanes": [{{"laneKey": "{lane.key}", "depthLimit": 3, "onFull": "drop_oldest"}}]}}',
        headers={"content-type": "application/json"},
    )
    assert put.json() == {"drivers": 0, "devices": 0, "points": 0, "lanes": 1}
    shown = (await http.get(f"/lanes/{lane.key}")).json()
    [terms] = shown["devices"]
    said = {name: (policy["value"], policy["setBy"]) for name, policy in terms["policies"].items()}
    assert said == {
        "gate": ("ack", "center"),
        "retry": ("relaxed", "device"),
        "reviewPolicy": ("release", "center"),
        "maxAttempts": (3, "center"),
        "ackTimeout": (None, "family"),
        "depthLimit": (3, "lane"),
        "onFull": ("drop_oldest", "lane"),
    }
    assert terms["points"] == [
        {"ack": "device", "ackTimeoutMs": None, "gate": None, "maxAttempts": None, "point": "unlock", "pointId": UNLOCK,
         "retrySafety": "unsafe"}
    ]  # fmt: skip
    for order in ("deepest", "longest_blocked"):
        seen, cursor = [], None
        while True:
            page = await http.get(
                "/lanes", params={"order": order, "limit": 2} | ({"cursor": cursor} if cursor else {})
            )
            seen += [each["laneKey"] for each in page.json()["lanes"]]
            cursor = page.json()["nextCursor"]
            if cursor is None:
                break
        assert lane.key in seen
        assert len(seen) == len(set(seen))
    only = (await http.get("/lanes", params={"driver": lane.driver})).json()["lanes"]
    assert [(each["laneKey"], each["depth"], each["state"]) for each in only] == [(lane.key, 2, "ready")]
    assert only[0]["blockedFor"] >= 0


async def test_a_lane_key_with_slashes(http: httpx.AsyncClient, engine: AsyncEngine) -> None:
    lane = await Lane(http, engine).registered(lane_key="topic/floor 1/explain")
    assert (await http.get("/lanes/topic%2Ffloor%201%2Fexplain/explain")).json()["laneKey"] == "topic/floor 1/explain"
    lane.key = "topic%2Ffloor%201%2Fexplain"
    assert (await lane.act("hold")).json()["laneKey"] == "topic/floor 1/explain"


async def test_bad_requests_change_nothing(lane: Lane) -> None:
    nobody = await lane.act("hold", headers={})
    assert (nobody.status_code, nobody.json()["code"]) == (422, "OPERATOR_MISSING")
    for body in ({}, {"reason": ""}, {"reason": "  "}, {"reason": "x", "more": 1}):
        assert (await lane.act("hold", json=body)).json()["code"] == "VALIDATION"
    assert (await lane.http.get("/lanes/device:0")).json()["code"] == "LANE_UNKNOWN"
    assert (await lane.http.post("/lanes/device:0/skip", json=WHY, headers=SHIFT)).json()["code"] == "LANE_UNKNOWN"
    assert (await lane.act("skip")).json()["code"] == "LANE_EMPTY"
    assert (await lane.http.get(f"/lanes/{lane.key}")).json()["operatorHold"] is None


async def test_cancel_over_http(lane: Lane) -> None:
    one, two = await lane.submit(), await lane.submit()
    gone = await lane.http.post(f"/commands/{two}/cancel", json={"reason": "not needed"}, headers=SHIFT)
    assert (gone.status_code, gone.json()["status"], gone.json()["errorCode"]) == (200, "CANCELLED", "CANCELLED")
    [*_, last] = (await lane.http.get(f"/commands/{two}/events")).json()["events"]
    assert (last["kind"], last["detail"]) == ("CANCELLED", {"by": "shift", "why": "not needed"})
    assert (await lane.http.post(f"/commands/{two}/cancel")).status_code == 200, "once more, without a body"
    audit = (await lane.http.get("/audit", params={"subject": two})).json()
    [act] = next(iter(value for value in audit.values() if isinstance(value, list)))
    assert (act["action"], act["operator"], act["why"]) == ("command.cancel", "shift", "not needed")
    await lane.claimed()
    late = await lane.http.post(f"/commands/{one}/cancel")
    assert (late.status_code, late.json()["code"]) == (409, "TOO_LATE")
    for unknown in ("nonsense", "00000000-0000-4000-8000-000000000000"):
        assert (await lane.http.post(f"/commands/{unknown}/cancel")).json()["code"] == "COMMAND_UNKNOWN"


async def test_intents_over_http(lane: Lane) -> None:
    fields: dict[str, Any] = {"intentKey": "face:1", "merge": "reject_duplicate", "purpose": "grant"}
    one = await lane.submit(**fields)
    body = {"deviceId": lane.device, "pointId": LEVEL, "type": "WRITE", "value": "1"} | fields
    again = await lane.http.post("/commands", json=body)
    assert (again.status_code, again.json()["commandId"]) == (200, one)
    assert again.headers["location"] == f"/commands/{one}"
    pointless = await lane.http.post("/commands", json=body | {"intentKey": None})
    assert "merge needs an intentKey" in pointless.json()["detail"]
    revoked = await lane.submit(intentKey="face:1", purpose="revoke")
    shown = (await lane.http.get(f"/commands/{revoked}")).json()
    assert (shown["priority"], shown["purpose"]) == (0, "revoke")
    assert (await lane.http.get(f"/commands/{one}")).json()["status"] == "SUPERSEDED"


async def test_a_full_lane_answers_429(http: httpx.AsyncClient, engine: AsyncEngine) -> None:
    lane = await Lane(http, engine).registered(depth_limit=2)
    body = {"deviceId": lane.device, "pointId": LEVEL, "type": "WRITE", "value": "1"}
    batch = (await http.post("/commands/batch", json={"commands": [body] * 4})).json()
    assert [each["httpStatus"] for each in batch["results"]] == [202, 202, 429, 429]
    assert batch["results"][3]["problem"]["code"] == "LANE_FULL"
    one = await http.post("/commands", json=body)
    assert (one.status_code, one.headers["retry-after"]) == (429, "1")
