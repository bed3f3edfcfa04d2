"""Following a command: answers as it ends, lines as they come; woken across processes, and when wake-ups are lost."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import asyncpg
import httpx
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from laneway_center import following
from laneway_center.api import streams
from laneway_center.app import Center, build_app
from laneway_center.settings import CenterSettings
from laneway_center.store.commands import get_command
from laneway_center.wakeups import FOLLOWED, MOVED, Wakeups
from laneway_shared.broker import Outgoing, declare
from laneway_shared.lifecycle import ResultKind
from laneway_shared.messages import ResultMessage, encode
from laneway_shared.serving import listen, serve
from laneway_shared.topology import Topology
from support.stored import beat, ids, register, rows, store, submission

K = ResultKind
DRIVER = "followed"
DEVICES = range(500, 560)
_free = iter(DEVICES)  # each has its lane, and its command may be left behind
BOUND_S = 20.0


class System:
    """An api center with a real HTTP server, a center of all other roles, and a hand that plays the driver."""

    def __init__(self, engine: AsyncEngine, api: Center, worker: Center, client: httpx.AsyncClient) -> None:
        self.engine, self.api, self.worker, self.client = engine, api, worker, client
        self.stop = asyncio.Event()

    @property
    def followers(self) -> following.Followers:
        return self.api.wakeups.followers

    async def sent(self) -> str:
        """A new command that waits at its driver."""
        [one] = ids(await store(self.engine, submission(next(_free))))
        self.worker.wakeups.lanes_ready()
        await until(lambda: self._is(one, "SENT"))
        return one

    async def tell(self, command_id: str, kind: ResultKind, **said: Any) -> None:
        """The driver says it, through RabbitMQ."""
        result = ResultMessage(status=kind, tenant_id=1, command_id=command_id, attempt=1, instance="i1", **said)
        names = self.worker.topology
        key = names.result_key(DRIVER)
        await self.worker.publisher.publish(
            [Outgoing(exchange=names.result_exchange, routing_key=key, body=encode([result]))]
        )

    async def _is(self, command_id: str, status: str) -> bool:
        found = await rows(self.engine, "SELECT status FROM point_command WHERE command_id = :c", c=command_id)
        return bool(found[0].status == status)


async def until(true: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(BOUND_S):
        while not await true():  # noqa: ASYNC110 - it looks at another process, as it were
            await asyncio.sleep(0.02)


async def until_followed(system: System, n: int = 1) -> None:
    async def enough() -> bool:
        return len(system.followers.commands()) >= n

    await until(enough)


@pytest.fixture
async def system(engine: AsyncEngine, database_url: str, amqp_url: str, prefix: str) -> AsyncIterator[System]:
    async with running(engine, database_url, amqp_url, prefix) as made:
        yield made


@contextlib.asynccontextmanager
async def running(engine: AsyncEngine, database_url: str, amqp_url: str, prefix: str) -> AsyncIterator[System]:
    common: dict[str, Any] = {
        "database_url": database_url,
        "amqp_url": amqp_url,
        "topology_prefix": prefix,
        "offline_after_s": 600.0,
    }
    names = Topology(prefix=prefix)
    await declare(amqp_url, names.exchanges, names.queues((DRIVER,)))
    await register(engine, DEVICES, driver=DRIVER)
    await beat(engine, DRIVER)
    api = Center(CenterSettings(roles="api", **common))
    worker = Center(CenterSettings(roles="dispatch,record,schedule", **common))
    with listen("127.0.0.1", 0) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        async with (
            worker.running(),
            api.running(),
            httpx.AsyncClient(base_url=url, timeout=BOUND_S) as client,
            asyncio.TaskGroup() as tasks,
        ):
            system = System(engine, api, worker, client)
            closing = api.wakeups.followers.close
            tasks.create_task(serve(build_app(api), listener, system.stop, patience_s=5, stopping=closing))
            try:
                yield system
            finally:
                system.stop.set()


async def lines(answer: httpx.Response) -> AsyncIterator[tuple[str, str | None, Any]]:
    """Events of a stream: name, id, data; comments as ('', None, text)."""
    event: dict[str, str] = {}
    async for line in answer.aiter_lines():
        if line.startswith(":"):
            yield "", None, line[1:].strip()
        elif line:
            name, _, value = line.partition(": ")
            event[name] = value
        elif event:
            yield event["event"], event.get("id"), json.loads(event["data"])
            event = {}


async def test_waiting_answers_when_it_ends_by_a_wake_up_from_another_process(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following.Followers, "looked", lambda *_: None)
    one = await system.sent()
    began = time.monotonic()
    waiting = asyncio.ensure_future(system.client.get(f"/commands/{one}?wait=15"))
    await until_followed(system)
    await heard_elsewhere(system)
    await system.tell(one, K.SUCCESS, response_value="7")
    shown = (await waiting).json()
    assert (shown["status"], shown["responseValue"]) == ("SUCCESS", "7")
    assert time.monotonic() - began < 14, "woken, not timed out"
    assert system.followers.commands() == []
    again = time.monotonic()
    assert (await system.client.get(f"/commands/{one}?wait=15")).json()["final"]
    assert time.monotonic() - again < 5, "it is final already"


async def test_an_end_between_the_look_and_the_wait_is_not_missed(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following.Followers, "looked", lambda *_: None)
    one = await system.sent()

    async def and_then_it_ends(*asked: Any) -> Any:
        monkeypatch.setattr(streams, "get_command", get_command)
        row = await get_command(*asked)
        await heard_elsewhere(system)
        [follower] = system.followers._all()
        await system.tell(one, K.SUCCESS)
        async with asyncio.timeout(BOUND_S):
            await follower.news.wait()
        return row

    monkeypatch.setattr(streams, "get_command", and_then_it_ends)
    began = time.monotonic()
    assert (await system.client.get(f"/commands/{one}?wait=15")).json()["final"]
    assert time.monotonic() - began < 14


async def heard_elsewhere(system: System) -> None:
    async def heard() -> bool:
        return system.worker.wakeups.followers.elsewhere

    await until(heard)


async def test_waiting_answers_though_no_wake_up_arrives(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Wakeups, "commands_moved", lambda *_, **__: None)
    one = await system.sent()
    began = time.monotonic()
    waiting = asyncio.ensure_future(system.client.get(f"/commands/{one}?wait=15"))
    await until_followed(system)
    await system.tell(one, K.SUCCESS)
    assert (await waiting).json()["status"] == "SUCCESS"
    assert time.monotonic() - began < 14


async def test_waiting_ends_with_the_time_and_has_bounds(system: System) -> None:
    one = await system.sent()
    shown = await system.client.get(f"/commands/{one}?wait=0.3")
    assert (shown.status_code, shown.json()["status"], shown.json()["final"]) == (200, "SENT", False)
    for bad in ("31", "-1", "x", "nan"):
        assert (await system.client.get(f"/commands/{one}?wait={bad}")).status_code == 422
    nobody = "0190c3e2-7b1c-7000-8000-3f2a9d5c1e77"
    assert (await system.client.get(f"/commands/{nobody}?wait=5")).status_code == 404


async def test_a_stream_has_each_line_once_as_it_comes_then_the_end(system: System) -> None:
    one = await system.sent()
    seen: list[tuple[str, str]] = []
    numbers: list[int] = []
    async with system.client.stream("GET", f"/commands/{one}/stream") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["cache-control"] == "no-cache"
        following_it = lines(answer)
        async for name, number, data in following_it:
            if name == "line":
                seen.append((data["kind"], data["to"]))
                numbers.append(int(number or 0))
            if seen[-1] == ("CONFIRMED", "SENT") and name == "line":
                await system.tell(one, K.TRANSMITTED)
            if seen[-1][0] == "TRANSMITTED":
                await system.tell(one, K.DUPLICATE)
            if seen[-1][0] == "DUPLICATE":
                await system.tell(one, K.SUCCESS, response_value="7")
            if name == "end":
                assert (data["status"], data["responseValue"]) == ("SUCCESS", "7")
                break
        assert [each async for each in following_it] == [], "it closes by itself"
    assert [kind for kind, _ in seen] == ["STORED", "CLAIMED", "CONFIRMED", "TRANSMITTED", "DUPLICATE", "SUCCESS"]
    assert numbers == sorted(set(numbers))
    timeline = (await system.client.get(f"/commands/{one}/events")).json()["events"]
    assert [event["kind"] for event in timeline] == [kind for kind, _ in seen]
    headers = {"Last-Event-ID": str(numbers[3])}
    async with system.client.stream("GET", f"/commands/{one}/stream", headers=headers) as answer:
        rest = [(name, number) async for name, number, _ in lines(answer)]
    assert rest == [("line", str(numbers[4])), ("line", str(numbers[5])), ("end", None)]


async def test_a_silent_stream_beats_and_a_reader_that_leaves_is_forgotten(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "HEARTBEAT_S", 0.1)
    one = await system.sent()
    async with system.client.stream("GET", f"/commands/{one}/stream") as answer:
        async for name, _, data in lines(answer):
            if name == "":
                assert data == "heartbeat"
                break

    async def gone() -> bool:
        return not system.followers.here

    await until(gone)


async def test_who_waits_is_answered_when_the_center_stops(
    engine: AsyncEngine, database_url: str, amqp_url: str, prefix: str
) -> None:
    async with running(engine, database_url, amqp_url, f"{prefix}stop") as system:
        one = await system.sent()
        waiting = asyncio.ensure_future(system.client.get(f"/commands/{one}?wait=20"))
        began = time.monotonic()
        async with system.client.stream("GET", f"/commands/{one}/stream") as answer:
            names = []
            async for name, _, _ in lines(answer):
                names.append(name)
                if len(names) == 3:
                    await until_followed(system)
                    system.stop.set()
        assert names == ["line", "line", "line", "stopping"]
        assert (await waiting).json()["status"] == "SENT"
        assert time.monotonic() - began < 15


async def test_more_than_may_wait_are_refused(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    one = await system.sent()
    waiting = asyncio.ensure_future(system.client.get(f"/commands/{one}?wait=10"))
    await until_followed(system)
    monkeypatch.setattr(following, "MOST", 1)
    for path in (f"/commands/{one}?wait=5", f"/commands/{one}/stream"):
        refused = await system.client.get(path)
        assert (refused.status_code, refused.json()["code"]) == (503, "TOO_MANY_FOLLOWERS")
        assert refused.headers["retry-after"] == "1"
    assert (await system.client.get(f"/commands/{one}")).status_code == 200
    await system.tell(one, K.SUCCESS)
    assert (await waiting).json()["final"]


async def test_whoever_finds_room_in_the_end_waits(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    one = await system.sent()
    most = following.MOST
    monkeypatch.setattr(following, "MOST", 0)

    async def meanwhile_somebody_leaves(*asked: Any) -> Any:
        monkeypatch.setattr(following, "MOST", most)
        return await get_command(*asked)

    monkeypatch.setattr(streams, "get_command", meanwhile_somebody_leaves)
    waiting = asyncio.ensure_future(system.client.get(f"/commands/{one}?wait=10"))
    await until_followed(system)
    await system.tell(one, K.SUCCESS)
    assert (await waiting).json()["final"]


async def test_nothing_is_sent_of_commands_while_nobody_follows_any(system: System, database_url: str) -> None:
    heard: list[str] = []
    connection = await asyncpg.connect(database_url)
    try:
        for channel in (MOVED, FOLLOWED):
            await connection.add_listener(channel, lambda *said: heard.append(str(said[2])))
        one = await system.sent()
        await system.tell(one, K.SUCCESS)
        await until(lambda: system._is(one, "SUCCESS"))
        await connection.execute("SELECT 1")
        assert heard == []
        two = await system.sent()
        waiting = asyncio.ensure_future(system.client.get(f"/commands/{two}?wait=15"))
        await until_followed(system)
        await heard_elsewhere(system)
        await system.tell(two, K.SUCCESS)
        assert (await waiting).json()["final"]
        await connection.execute("SELECT 1")
        assert {FOLLOWED, MOVED} <= set(heard)
    finally:
        await connection.close()


async def test_forty_follow_at_once(system: System) -> None:
    several = [await system.sent() for _ in range(10)]
    waiting = [asyncio.ensure_future(system.client.get(f"/commands/{one}?wait=15")) for one in several * 4]
    await until_followed(system, 10)
    for one in several:
        await system.tell(one, K.SUCCESS)
    assert {answer.json()["status"] for answer in await asyncio.gather(*waiting)} == {"SUCCESS"}
    assert not system.followers.here
