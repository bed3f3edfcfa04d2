"""An operator's day at a terminal, on the whole system: dead letters, reviews, lanes, commands."""

import asyncio
import json
import os
import signal
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from laneway_local.services import script
from laneway_local.stack import AMQP_URL, DATABASE_URL, MANAGEMENT_URL
from support import command_line
from support.command_line import Ended, environment, on_terminal
from support.laneway import SWITCH, UNLOCK, Laneway, until

LOCKS, SWITCHES = range(100, 200), range(1000, 1150)
RUBBISH = 600
WHO = ("--operator", "duty", "--reason", "drivers were down")


@pytest.fixture
def names(laneway: Laneway, database_url: str) -> dict[str, str]:
    """What a shell would have set."""
    urls = {name: laneway.stack.urls[name] for name in (AMQP_URL, MANAGEMENT_URL)}
    return urls | {
        "LANEWAY_URL": laneway.stack.service_url("center"),
        "LANEWAY_TOPOLOGY_PREFIX": laneway.prefix,
        DATABASE_URL: database_url,
    }


async def said(names: dict[str, str], *arguments: str) -> Any:
    """The JSON document of a command that must succeed."""
    ended = await command_line.laneway(*arguments, "--output", "json", **names)
    assert (ended.code, ended.errors) == (0, ""), ended
    return json.loads(ended.out)


async def run(names: dict[str, str], *arguments: str) -> Ended:
    return await command_line.laneway(*arguments, **names)


def executed(laneway: Laneway, command_ids: Sequence[str]) -> Counter[str]:
    """How often virtual devices executed each."""
    wanted = set(command_ids)
    return Counter(each["commandId"] for each in laneway.virtual_executions() if each["commandId"] in wanted)


async def expire(laneway: Laneway, driver: str, devices: Sequence[int]) -> list[str]:
    """Commands that pass their deadline while all drivers of the service stand still."""
    for replica in ("", "-2"):
        laneway.stack.pause_service(f"driver-{driver}{replica}")
    try:
        bodies = [{"deviceId": n, "pointId": SWITCH, "type": "WRITE", "value": "1", "expireIn": 2} for n in devices]
        made = await laneway.submit_batches(bodies)
        await laneway.all_ended(60)
    finally:
        for replica in ("", "-2"):
            laneway.stack.resume_service(f"driver-{driver}{replica}")
    return made


@pytest.mark.timeout(600)
async def test_a_thousand_mixed_letters(laneway: Laneway, names: dict[str, str]) -> None:
    await laneway.register(LOCKS, "mqtt")
    await laneway.register(SWITCHES, "virtual")
    others = await expire(laneway, "mqtt", LOCKS)
    mine = await expire(laneway, "virtual", [*SWITCHES, *SWITCHES])  # the second ones are never sent
    await laneway.publish(
        f"{laneway.prefix}.e.point_command_dead", "x", *(f"rubbish {n}".encode() for n in range(RUBBISH))
    )

    async def all_there() -> bool:
        return bool((await said(names, "dead", "list", "--group"))["total"] == 1000)

    await until(all_there, 60)
    groups = (await said(names, "dead", "list", "--group"))["groups"]
    assert {(each["reason"], each["driver"]): each["count"] for each in groups} == {
        ("unreadable", None): RUBBISH, ("timeout", "virtual"): 150, ("expired", "virtual"): 150,
        ("timeout", "mqtt"): len(others),
    }  # fmt: skip
    code, seen = await on_terminal("dead", "list", given=names)
    assert code == 0
    assert max(map(len, seen.splitlines())) <= 80
    some = (await said(names, "dead", "list", "--driver", "virtual", "--limit", "1"))["deadLetters"][0]
    shown = await run(names, "dead", "show", str(some["id"]))
    assert (shown.code, shown.errors) == (0, "")
    assert some["commandId"] in shown.out
    assert "x-death" not in shown.out.partition("Timeline")[0]
    rubbish = (await said(names, "dead", "list", "--kind", "message", "--limit", "1"))["deadLetters"][0]
    assert "rubbish " in (await run(names, "dead", "show", str(rubbish["id"]))).out

    chosen = ("dead", "replay", "--driver", "virtual", "--reason", "expired in the outage", "--operator", "duty")
    dry = await run(names, *chosen, "--dry-run")
    assert (dry.code, dry.out) == (0, "300 would be replayed, 0 refused.\n")
    replayed = await _interrupted_and_again(names, (*chosen, "--rate", "50", "--expire-in", "120"))
    assert replayed == 300
    for each in mine:
        assert (await laneway.ended(each))["status"] == "SUCCESS"
    assert executed(laneway, mine) == Counter(mine), "each device acted once"
    again = await run(names, *chosen)
    assert (again.code, again.errors) == (0, "")
    assert again.out == "Nothing to replay: no open dead letter matches (300 replayed before).\n"
    assert (await said(names, "dead", "list", "--group"))["total"] == 700
    assert {(await laneway.show(each))["status"] for each in others[:5]} == {"TIMEOUT"}
    once_more = await run(names, "dead", "replay", str(some["id"]), *WHO)
    assert once_more.code == 1
    assert "ALREADY_REPLAYED" in once_more.out
    discarded = await run(names, "dead", "discard", "--why-dead", "unreadable", *WHO)
    assert (discarded.code, discarded.out) == (0, f"{RUBBISH} discarded, 0 refused.\n")
    actions = (await said(names, "audit", "--action", "letter.replay", "--limit", "1000"))["actions"]
    assert Counter((each["operator"], each["why"]) for each in actions) == {("duty", "expired in the outage"): 300}


async def _interrupted_and_again(names: dict[str, str], arguments: Sequence[str]) -> int:
    """How many were replayed by a run that is ended by Ctrl-C in its middle, and by the next one."""
    process = await asyncio.create_subprocess_exec(
        script("laneway"), *arguments, "--output", "json", env=environment(names), stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip

    async def some_went() -> bool:
        replayed = await said(names, "dead", "list", "--group", "--state", "replayed")
        return bool(replayed["total"] >= 20)

    await until(some_went, 60)
    os.kill(process.pid, signal.SIGINT)
    out, errors = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 130, errors
    first = json.loads(out)
    assert 0 < first["done"] < 300
    assert first["left"] == 300 - first["done"]
    second = await said(names, *arguments)
    assert second["refused"] == 0
    return int(first["done"] + second["done"])


async def test_a_command_is_submitted_followed_and_shown(laneway: Laneway, names: dict[str, str]) -> None:
    await laneway.register([10], "virtual")
    submitted = ("command", "submit", "--device", "10", "--point", str(SWITCH), "--value", "1", "--watch")
    ended = await run(names, *submitted)
    assert (ended.code, ended.errors) == (0, "")
    assert ended.out.splitlines()[-1].startswith("SUCCESS")
    found = (await said(names, "command", "list", "--device", "10"))["commands"]
    assert [each["status"] for each in found] == ["SUCCESS"]
    shown = await said(names, "command", "get", found[0]["commandId"], "--events")
    assert shown["events"][0]["kind"] == "STORED"
    watched = await run(names, "command", "watch", found[0]["commandId"])
    assert watched.code == 0
    assert len(watched.out.splitlines()) == 1 + len(shown["events"])
    cancelled = await run(names, "command", "cancel", found[0]["commandId"], *WHO)
    assert cancelled.code == 1
    assert "laneway: TOO_LATE: " in cancelled.reason
    for unknown in ("0190c3e2-7b1c-7000-8000-3f2a9d5c1e77", "no-id"):
        missing = await run(names, "command", "get", unknown)
        assert missing.code == 1
        assert missing.reason.startswith("laneway: ")


async def test_a_lane_is_held_explained_and_released(laneway: Laneway, names: dict[str, str]) -> None:
    await laneway.register([11], "virtual")
    await laneway.accepted(11, 1)
    held = await run(names, "lane", "hold", "device:11", *WHO)
    assert held.code == 0
    waiting = [await laneway.accepted(11, n, expireIn=300) for n in range(3)]
    explained = await said(names, "lane", "explain", "device:11")
    assert explained["waiting"] == 3
    told = await run(names, "lane", "explain", "device:11")
    assert told.out.splitlines()[0] == explained["says"]
    assert "duty" in told.out
    assert "device:11" in (await run(names, "lane", "list", "--driver", "virtual")).out
    code, seen = await on_terminal("lane", "list", given=names)
    assert (code, max(map(len, seen.splitlines())) <= 80) == (0, True)
    assert (await run(names, "command", "cancel", waiting[2], *WHO)).code == 0
    assert (await run(names, "lane", "release", "device:11", *WHO)).code == 0
    assert [(await laneway.ended(each))["status"] for each in waiting] == ["SUCCESS", "SUCCESS", "CANCELLED"]
    skipped = await run(names, "lane", "skip", "device:11", *WHO)
    assert skipped.code == 1
    assert (await run(names, "lane", "explain", "nowhere")).code == 1
    done = [each["action"] for each in (await said(names, "audit", "--subject", "device:11"))["actions"]]
    assert done == ["lane.release", "lane.hold"]


async def test_of_two_who_decide_a_review_the_second_is_told(laneway: Laneway, names: dict[str, str]) -> None:
    await laneway.register([12], "mqtt")
    await laneway.behave(12, silent="before", times=1)
    unlock = await laneway.accepted(12, "1", UNLOCK)
    watched = await run(names, "command", "watch", unlock)
    assert watched.code == 1
    assert "IN_REVIEW" in watched.reason
    assert unlock in (await run(names, "review", "list")).out
    code, seen = await on_terminal("review", "list", given=names)
    assert (code, max(map(len, seen.splitlines())) <= 80) == (0, True)
    shown = await run(names, "review", "show", unlock)
    assert (shown.code, shown.errors) == (0, "")
    assert "MANUAL_REVIEW" in shown.out
    decide = ("review", "resolve", unlock, "--as", "FAILED", *WHO)
    ends = [await run(names, *decide), await run(names, *decide)]
    assert [each.code for each in ends] == [0, 1]
    assert ends[0].out == f"{unlock} is FAILED\n"
    assert "NOT_IN_REVIEW" in ends[1].reason
    assert "duty" in ends[1].reason
    assert "FAILED by duty" in (await run(names, "review", "show", unlock)).out


async def test_drivers_the_registry_and_the_topology_are_seen(
    laneway: Laneway, names: dict[str, str], tmp_path: Path
) -> None:
    code, seen = await on_terminal("driver", "list", given=names)
    assert code == 0
    assert max(map(len, seen.splitlines())) <= 80
    assert {"driver", "ack-listener"} <= set(seen.split())
    file = tmp_path / "registry.yaml"
    assert (await run(names, "registry", "export", "--to-file", str(file))).code == 0
    same = await run(names, "registry", "diff", str(file))
    assert (same.code, same.out) == (0, "Nothing differs.\n")
    file.write_text(file.read_text("utf-8").replace("name: volume", "name: loudness", 1), "utf-8")
    differs = await run(names, "registry", "diff", str(file))
    assert differs.code == 1
    assert "volume" in differs.out
    assert (await run(names, "registry", "import", str(file))).code == 0
    assert (await run(names, "registry", "diff", str(file))).code == 0
    file.write_text("drivers: 7", "utf-8")
    assert (await run(names, "registry", "import", str(file))).code == 1
    verified = await run(names, "topology", "verify")
    assert (verified.code, verified.errors) == (0, ""), verified.out
    assert verified.out.endswith("Driver services: mqtt, virtual.\n")
    assert (await run(names, "db", "current")).code == 0


async def test_letters_are_saved_while_no_center_runs(laneway: Laneway, names: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "letters.ndjson"
    busy = await run(names, "dead", "drain", "--to-file", str(file))
    assert busy.code == 1
    assert "DEAD_QUEUE_IN_USE" in busy.reason
    before = (await said(names, "dead", "list", "--group", "--kind", "message"))["total"]
    for center in ("center", "center-2"):
        laneway.stack.stop_service(center)
    await laneway.publish(f"{laneway.prefix}.e.point_command_dead", "y", *(f"saved {n}".encode() for n in range(7)))
    drained = await run(names, "dead", "drain", "--to-file", str(file))
    assert (drained.code, drained.out) == (0, f"7 letters drained into {file}, 7 in it now.\n")
    down = await run(names, "dead", "list")
    assert down.code == 3
    assert "CENTER_AWAY" in down.reason
    for center in ("center", "center-2"):
        laneway.stack.restart_service(center)
    assert (await run(names, "dead", "drain", "--from-file", str(file))).code == 0
    assert (await run(names, "dead", "drain", "--from-file", str(file))).code == 0

    async def stored() -> bool:
        try:
            return bool((await said(names, "dead", "list", "--group", "--kind", "message"))["total"] == before + 7)
        except httpx.HTTPError:
            return False

    await until(stored, 30)
