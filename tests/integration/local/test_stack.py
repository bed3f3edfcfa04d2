"""Whole stacks: side by side, on given servers, interrupted and killed in the middle."""

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest

from laneway_local import postgres
from laneway_local.errors import StackError
from laneway_local.identity import marked
from laneway_local.ports import answers, free_port
from laneway_local.processes import MARK
from laneway_local.stack import AMQP_URL, DATABASE_URL, MANAGEMENT_URL, MQTT_URL, Stack, running, sweep
from laneway_local.state import State

WAIT_S = 60.0
LIVES = """
import signal, sys, time
from pathlib import Path
from laneway_local.stack import Stack, running
signal.signal(signal.SIGTERM, signal.default_int_handler)
with running(Stack(Path(sys.argv[1]), environment={}, durable=False)):
    print("up", flush=True)
    time.sleep(600)
"""


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    assert parts.hostname
    assert parts.port
    return parts.hostname, parts.port


def assert_nothing_left(stack: Stack, folders: tuple[str, ...]) -> None:
    assert list(marked(MARK, f"{stack.directory}:")) == []
    assert not any(Path(folder).exists() for folder in folders)
    assert not stack.state.path.exists()
    left = {path.name for path in stack.directory.iterdir()}
    assert left <= {"logs", "lock"}


@pytest.fixture
def starter(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that starts a stack in tmp_path/tests/one and stays."""
    with subprocess.Popen([sys.executable, "-c", LIVES, tmp_path / "tests" / "one"], stdout=subprocess.PIPE) as process:  # noqa: S603
        yield process
        process.kill()
    sweep(tmp_path)


def has_rabbitmq(state: State) -> bool:
    return "rabbitmq" in state.children


def has_initdb(state: State) -> bool:
    return "initdb" in state.children


def is_complete(state: State) -> bool:
    return state.complete


@pytest.mark.parametrize("moment", [has_initdb, has_rabbitmq, is_complete])
def test_after_the_starter_was_killed_at_any_moment_the_next_one_cleans_up(
    tmp_path: Path, starter: subprocess.Popen[bytes], moment: Callable[[State], bool]
) -> None:
    stack = Stack(tmp_path / "tests" / "one", environment={})
    until(lambda: moment(stack.state.read()))
    starter.kill()
    starter.wait()
    folders = stack.state.read().folders
    sweep(tmp_path)
    assert_nothing_left(stack, folders)


def test_a_running_stack_of_a_living_process_is_not_swept(tmp_path: Path, starter: subprocess.Popen[bytes]) -> None:
    stack = Stack(tmp_path / "tests" / "one", environment={})
    until(lambda: stack.state.read().complete)
    sweep(tmp_path)
    assert stack.missing() == []
    folders = stack.state.read().folders
    starter.send_signal(signal.SIGTERM)  # not SIGINT: a shell without job control starts us with it ignored
    starter.wait(timeout=WAIT_S)
    assert_nothing_left(stack, folders)


def servers_of(stack: Stack) -> dict[str, str]:
    """The URLs of its servers, without those of services that other tests ran on them."""
    return {name: stack.urls[name] for name in (AMQP_URL, DATABASE_URL, MQTT_URL)}


async def test_two_stacks_run_side_by_side_and_end_alone(tmp_path: Path, infra: Stack) -> None:
    with running(Stack(tmp_path, environment={}, durable=False)) as second:
        assert set(second.urls) == {AMQP_URL, DATABASE_URL, MQTT_URL, MANAGEMENT_URL}
        assert not set(second.urls.values()) & set(servers_of(infra).values())
        assert all(answers(*address(url)) for url in second.urls.values())
        urls, folders = second.urls, second.state.read().folders
    assert_nothing_left(second, folders)
    assert not any(answers(*address(url)) for url in urls.values())
    assert all(answers(*address(url)) for url in servers_of(infra).values())
    connection = await asyncpg.connect(infra.urls[DATABASE_URL])
    await connection.close()


def test_given_servers_are_used_and_left_alone(tmp_path: Path, infra: Stack) -> None:
    before = infra.state.read().children
    given = servers_of(infra) | {MANAGEMENT_URL: infra.urls[MANAGEMENT_URL]}
    with running(Stack(tmp_path, environment=given)) as guest:
        assert guest.urls == given
        assert guest.state.read().children == {}
    assert infra.state.read().children == before
    assert not {"rabbitmq", "postgres", "mosquitto"} & set(infra.missing())


def test_a_given_server_that_does_not_answer_is_named_without_its_password(tmp_path: Path) -> None:
    url = f"amqp://user:hidden@127.0.0.1:{free_port()}/"
    with (
        pytest.raises(StackError, match=r"LANEWAY_AMQP_URL names 127.0.0.1:\d+, where nothing answers") as error,
        running(Stack(tmp_path, environment={AMQP_URL: url})),
    ):
        pass
    assert "hidden" not in str(error.value)


def test_rabbitmq_stops_and_starts_in_place_and_keeps_what_is_durable(infra: Stack) -> None:
    host, port = address(infra.urls[AMQP_URL])
    infra.rabbitmq.control("add_vhost", "kept")
    for end in (infra.rabbitmq.stop, infra.rabbitmq.kill):
        end()
        assert not answers(host, port)
        infra.rabbitmq.start()
        assert infra.urls[AMQP_URL] == infra.rabbitmq.url
        assert "kept" in infra.rabbitmq.control("list_vhosts")
    infra.rabbitmq.control("delete_vhost", "kept")


async def test_postgresql_stops_and_starts_in_place_and_keeps_its_data(infra: Stack, database_url: str) -> None:
    connection = await asyncpg.connect(database_url)
    await connection.execute("CREATE TABLE kept (id int)")
    await connection.close()
    for end in (infra.postgres.stop, infra.postgres.kill):
        end()
        assert not answers(*address(database_url))
        infra.postgres.start()
        connection = await asyncpg.connect(database_url)
        assert await connection.fetchval("SELECT count(*) FROM kept") == 0
        await connection.close()


def test_mosquitto_stops_and_starts_in_place(infra: Stack) -> None:
    for end in (infra.mosquitto.stop, infra.mosquitto.kill):
        end()
        infra.mosquitto.start()
        assert answers(*address(infra.urls[MQTT_URL]))


def test_servers_listen_on_loopback_only(infra: Stack) -> None:
    own_address = socket.gethostbyname(socket.gethostname())
    if own_address.startswith("127."):
        pytest.skip("this machine has no other address")
    ports = [address(url)[1] for url in infra.urls.values()]
    assert not any(answers(own_address, port) for port in ports)


async def test_each_database_is_empty_and_gone_afterwards(infra: Stack, new_database: Callable[[], str]) -> None:
    urls = {new_database(), new_database()}
    assert len(urls) == 2
    for url in urls:
        connection = await asyncpg.connect(url)
        assert await connection.fetchval("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'") == 0
        # still connected: dropping it must not wait for us
        postgres.drop_database(infra.urls[DATABASE_URL], urlsplit(url).path.lstrip("/"))
        connection.terminate()
