"""The servers the integration tests run on: a private stack per test session, by the module `make up` uses too."""

import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from laneway_local import packages, postgres
from laneway_local.services import Service
from laneway_local.stack import DATABASE_URL, Stack, running, sweep

CHECKOUT = Path(__file__).resolve().parents[2]
LOCAL = CHECKOUT / ".local"


@contextmanager
def session_stack(*, durable: bool = False) -> Iterator[Stack]:
    """RabbitMQ, PostgreSQL and Mosquitto for this test process; what a killed one left behind is cleaned up first.

    Tests don't need what is `durable` against power loss; who measures does.
    """
    sweep(LOCAL)
    packages.ensure(os.environ)
    with running(Stack(LOCAL / "tests" / str(os.getpid()), durable=durable)) as stack:
        yield stack


@contextmanager
def fresh_database(infra: Stack) -> Iterator[str]:
    """Yield the URL of an empty database that is dropped afterwards."""
    server = infra.urls[DATABASE_URL]
    url = postgres.create_database(server, f"test_{secrets.token_hex(6)}")
    try:
        yield url
    finally:
        postgres.drop_database(server, urlsplit(url).path.lstrip("/"))


@contextmanager
def laneway_services(
    infra: Stack, wanted: Iterable[Service], *, database_url: str, prefix: str, **settings: str
) -> Iterator[Stack]:
    """Run Laneway services on the session's servers, with a migrated database and queue names of their own.

    Inside the block `infra.service_url`, `stop_service`, `kill_service`, `restart_service` … act on them by name.
    """
    everything = tuple(wanted)
    own = {DATABASE_URL: database_url, "LANEWAY_TOPOLOGY_PREFIX": prefix, **settings}
    infra.migrate(**own)
    try:
        infra.start_services(everything, **own)
        yield infra
    finally:
        infra.stop_services(service.name for service in everything)
