"""Fixtures for all tests. Servers start only when a test asks for one of them, and always end with the session."""

import secrets
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from laneway_local.stack import AMQP_URL, MQTT_URL, Stack
from support.stack import fresh_database, session_stack


def pytest_configure() -> None:
    """Let SIGTERM end the session like Ctrl-C, with all fixtures torn down."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


@pytest.fixture(scope="session")
def infra(request: pytest.FixtureRequest) -> Iterator[Stack]:
    """Private RabbitMQ, PostgreSQL and Mosquitto; `infra.rabbitmq.stop()`, `.start()`, `.kill()` act on one."""
    with session_stack() as stack:
        yield stack
    if not request.session.testsfailed:  # the logs of a failed session are worth keeping
        shutil.rmtree(stack.directory, ignore_errors=True)


@pytest.fixture(scope="session")
def amqp_url(infra: Stack) -> str:
    """RabbitMQ. Take `prefix` for the names of queues, so that modules don't meet."""
    return infra.urls[AMQP_URL]


@pytest.fixture(scope="session")
def mqtt_url(infra: Stack) -> str:
    """Mosquitto. Take `prefix` as the first level of topics, so that modules don't meet."""
    return infra.urls[MQTT_URL]


@pytest.fixture(scope="module")
def prefix() -> str:
    """Queue name prefix of one test module."""
    return f"t{secrets.token_hex(4)}"


@pytest.fixture(scope="module")
def database_url(infra: Stack) -> Iterator[str]:
    """An empty database for one test module (no schema yet)."""
    with fresh_database(infra) as url:
        yield url


@pytest.fixture
def new_database(infra: Stack) -> Iterator[Callable[[], str]]:
    """Makes further empty databases, which are dropped after the test."""
    with ExitStack() as made:
        yield lambda: made.enter_context(fresh_database(infra))
