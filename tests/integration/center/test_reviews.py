"""Reviews over HTTP on a real database: all evidence, and of two operators the second is told."""

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from laneway_shared.lifecycle import ResultKind as K
from support.doors import open_doors
from support.ended import claimed, in_review, tell
from support.lanes import lane_of
from support.stored import LEVEL, UNLOCK, books_balance, ids, store, submission

KIM, LEE = {"X-Operator": "kim"}, {"X-Operator": "lee"}
LOOKED = {"reason": "looked at the door"}


@pytest.fixture(scope="module")
async def http(engine: AsyncEngine, database_url: str) -> AsyncIterator[httpx.AsyncClient]:
    async with open_doors(database_url) as client:
        yield client


async def test_open_reviews_say_since_when_and_why(http: httpx.AsyncClient, engine: AsyncEngine) -> None:
    driver, devices = await lane_of(engine, 3, review_policy="hold")
    made = await in_review(engine, driver, *devices)
    await store(engine, submission(devices[0], "2"), submission(devices[0], "3"))
    page = (await http.get("/reviews", params={"driver": driver, "limit": 2})).json()
    rest = (await http.get("/reviews", params={"driver": driver, "limit": 2, "cursor": page["nextCursor"]})).json()
    assert [each["commandId"] for each in page["reviews"] + rest["reviews"]] == made
    assert rest["nextCursor"] is None
    first = page["reviews"][0]
    assert (first["deviceId"], first["attempt"], first["waitingBehind"], first["holdsLane"]) == (devices[0], 1, 2, True)
    assert first["why"] == "nobody knows whether it acted; a person decides"
    assert first["errorCode"] == "NO_ANSWER"
    only = (await http.get("/reviews", params={"deviceId": devices[1]})).json()["reviews"]
    assert [each["commandId"] for each in only] == [made[1]]
    assert (await http.get("/reviews", headers={"X-Tenant-Id": "2"})).json()["reviews"] == []


async def test_a_review_shows_all_that_was_said_the_late_apart_and_the_same_once(
    http: httpx.AsyncClient, engine: AsyncEngine
) -> None:
    driver, [device] = await lane_of(engine)
    [one] = await in_review(engine, driver, device)
    again = await http.post(f"/reviews/{one}/requeue", json=LOOKED | {"expireIn": 60}, headers=KIM)
    assert (again.json()["outcome"], again.json()["nextAttempt"]) == ("replayed", 2)
    assert await claimed(engine, driver) == [one]
    await tell(engine, [one], K.STARTED, attempt=2)
    for _ in range(3):
        await tell(engine, [one], K.SUCCESS, attempt=1, response_value="open")
    await tell(engine, [one], K.UNKNOWN, attempt=2, error_code="CALL_TIMEOUT")
    shown = (await http.get(f"/reviews/{one}")).json()
    assert (shown["open"], shown["command"]["status"]) == (False, "DISPATCHING")
    assert [(a["attempt"], a["kind"], a["count"]) for a in shown["answers"]] == [(1, "STARTED", 1)]
    late = [(a["attempt"], a["kind"], a["responseValue"], a["count"]) for a in shown["lateAnswers"]]
    assert late == [(2, "STARTED", None, 1), (1, "SUCCESS", "open", 3), (2, "UNKNOWN", None, 1)]
    assert [a["attempt"] for a in shown["attempts"]] == [1, 2]
    assert shown["attempts"][0]["startedAt"]
    assert shown["attempts"][0]["outcome"].startswith("MANUAL_REVIEW: ")
    assert (shown["decision"]["operator"], shown["decision"]["outcome"]) == ("kim", "PENDING")
    assert shown["events"][0]["kind"] == "STORED"


@pytest.mark.parametrize("outcome", ["SUCCESS", "FAILED"])
async def test_resolved_with_a_reason_and_written_down(
    http: httpx.AsyncClient, engine: AsyncEngine, outcome: str
) -> None:
    driver, [device] = await lane_of(engine, review_policy="hold")
    [one] = await in_review(engine, driver, device)
    [behind] = ids(await store(engine, submission(device, "2")))
    assert await claimed(engine, driver) == [], "the review holds the lane"
    done = await http.post(f"/reviews/{one}/resolve", json=LOOKED | {"outcome": outcome}, headers=KIM)
    assert (done.status_code, done.json()["status"], done.json()["final"]) == (200, outcome, True)
    assert await claimed(engine, driver) == [behind]
    await books_balance(engine)
    shown = (await http.get(f"/reviews/{one}")).json()
    assert (shown["open"], shown["decision"]["operator"], shown["decision"]["why"]) == (False, "kim", LOOKED["reason"])
    [act] = (await http.get("/audit", params={"subject": one})).json()["actions"]
    assert (act["operator"], act["action"], act["before"]["status"], act["after"]["status"]) == (
        "kim", "review.resolve", "MANUAL_REVIEW", outcome)  # fmt: skip
    second = await http.post(f"/reviews/{one}/requeue", json=LOOKED, headers=LEE)
    assert (second.status_code, second.json()["code"]) == (409, "NOT_IN_REVIEW")
    assert f"became {outcome}" in second.json()["detail"]
    assert "kim did that" in second.json()["detail"]


async def test_of_many_operators_at_once_one_decides_and_the_others_hear_who(
    http: httpx.AsyncClient, engine: AsyncEngine
) -> None:
    driver, [device] = await lane_of(engine)
    [one] = await in_review(engine, driver, device)
    bodies = [("resolve", {"outcome": "SUCCESS"}), ("resolve", {"outcome": "FAILED"}), ("requeue", {})] * 3
    answers = await asyncio.gather(
        *(
            http.post(f"/reviews/{one}/{how}", json=LOOKED | body, headers={"X-Operator": f"operator {n}"})
            for n, (how, body) in enumerate(bodies)
        )
    )
    [first] = [n for n, answer in enumerate(answers) if answer.status_code == 200]
    others = [answer.json() for answer in answers if answer.status_code != 200]
    assert {problem["code"] for problem in others} == {"NOT_IN_REVIEW"}
    assert all(f"operator {first} did that" in problem["detail"] for problem in others)
    assert len((await http.get("/audit", params={"subject": one})).json()["actions"]) == 1
    await books_balance(engine)


async def test_late_evidence_was_first(http: httpx.AsyncClient, engine: AsyncEngine) -> None:
    driver, [device] = await lane_of(engine)
    [one] = await in_review(engine, driver, device)
    await tell(engine, [one], K.SUCCESS)
    answer = await http.post(f"/reviews/{one}/resolve", json=LOOKED | {"outcome": "FAILED"}, headers=KIM)
    assert (answer.status_code, answer.json()["code"]) == (409, "NOT_IN_REVIEW")
    assert "late evidence did that" in answer.json()["detail"]
    decision = (await http.get(f"/reviews/{one}")).json()["decision"]
    assert (decision["operator"], decision["outcome"], decision["why"]) == (None, "SUCCESS", "the device did it")


async def test_requeued_behind_a_newer_one_of_its_intent_only_with_force(
    http: httpx.AsyncClient, engine: AsyncEngine
) -> None:
    driver, [device] = await lane_of(engine)
    [one] = await in_review(engine, driver, device, intent_key="guest")
    await store(engine, submission(device, point=UNLOCK, intent_key="guest"))
    refused = await http.post(f"/reviews/{one}/requeue", json=LOOKED, headers=KIM)
    assert (refused.status_code, refused.json()["code"]) == (409, "INTENT_OVERTAKEN")
    tried = await http.post(f"/reviews/{one}/requeue", json=LOOKED | {"force": True, "dryRun": True}, headers=KIM)
    assert (tried.json()["outcome"], tried.json()["command"]["status"]) == ("would_replay", "MANUAL_REVIEW")
    done = await http.post(f"/reviews/{one}/requeue", json=LOOKED | {"force": True}, headers=KIM)
    assert (done.json()["outcome"], done.json()["command"]["status"]) == ("replayed", "PENDING")
    [act] = (await http.get("/audit", params={"subject": one})).json()["actions"]
    assert (act["action"], act["after"]["force"]) == ("review.requeue", True)


async def test_what_is_no_review(http: httpx.AsyncClient, engine: AsyncEngine) -> None:
    _, [device] = await lane_of(engine)
    [fine] = ids(await store(engine, submission(device, point=LEVEL)))
    resolve = LOOKED | {"outcome": "SUCCESS"}
    for command_id, status, shown, acted in (
        (fine, 409, "REVIEW_UNKNOWN", "NOT_IN_REVIEW"),
        ("0190c3e2-7b1c-7000-8000-3f2a9d5c1e77", 404, "COMMAND_UNKNOWN", "COMMAND_UNKNOWN"),
        ("42", 404, "COMMAND_UNKNOWN", "COMMAND_UNKNOWN"),
    ):
        answer = await http.get(f"/reviews/{command_id}")
        assert (answer.status_code, answer.json()["code"]) == (404, shown)
        for how, body in (("resolve", resolve), ("requeue", LOOKED)):
            answer = await http.post(f"/reviews/{command_id}/{how}", json=body, headers=KIM)
            assert (answer.status_code, answer.json()["code"]) == (status, acted)
    for headers, body, code in (
        ({}, resolve, "OPERATOR_MISSING"),
        (KIM, LOOKED, "VALIDATION"),
        (KIM, {"outcome": "SUCCESS"}, "VALIDATION"),
        (KIM, LOOKED | {"outcome": "DEAD"}, "VALIDATION"),
    ):
        answer = await http.post(f"/reviews/{fine}/resolve", json=body, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (422, code)
