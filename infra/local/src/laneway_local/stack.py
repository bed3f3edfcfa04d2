"""A stack in one directory: the infrastructure, Laneway's services on it, and their orderly end."""

import os
import shutil
import signal
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

import httpx

from laneway_local import mosquitto, postgres, rabbitmq, services
from laneway_local.errors import StackError
from laneway_local.identity import is_alive
from laneway_local.ports import LOOPBACK, answers, is_listener
from laneway_local.processes import Processes, Program, settle
from laneway_local.services import Service
from laneway_local.state import State, StateFile

DATABASE_URL, AMQP_URL, MQTT_URL = "LANEWAY_DATABASE_URL", "LANEWAY_AMQP_URL", "LANEWAY_MQTT_URL"
MANAGEMENT_URL = "LANEWAY_RABBITMQ_MANAGEMENT_URL"
SETTLED_S = 0.5  # a process without a sign of readiness counts as started when it has lived so long
SHOWN = {"API": "LANEWAY_API_URL", "simulator": "LANEWAY_SIMULATOR_URL"}  # URLs without a password
_DEFAULT_PORTS = {DATABASE_URL: 5432, AMQP_URL: 5672, MQTT_URL: 1883}


class Server(Protocol):
    """One of the three infrastructure servers."""

    @property
    def url(self) -> str:
        """Where clients find it."""

    def start(self) -> None:
        """Start it and wait until it is ready; on the same port as before, if there was one."""

    def stop(self) -> None:
        """Stop it in order; its data stays."""

    def kill(self) -> None:
        """End it at once, as a crash would; its data stays."""


class Stack:
    """The stack whose state lies in `directory`.

    Servers named in `environment` by LANEWAY_DATABASE_URL, LANEWAY_AMQP_URL or LANEWAY_MQTT_URL are used as they are,
    and neither started nor stopped; so is the management API of a given broker, if LANEWAY_RABBITMQ_MANAGEMENT_URL
    names it. `durable` False makes PostgreSQL quicker and unsafe against power loss.
    Not for two threads at once, except that each may act on services of its own once all have been started; `held`
    keeps other processes out.
    """

    def __init__(self, directory: Path, *, environment: Mapping[str, str] = os.environ, durable: bool = True) -> None:
        self.directory = directory.resolve()
        self.state = StateFile(self.directory)
        self.processes = Processes(self.directory, self.state)
        self.rabbitmq = rabbitmq.RabbitMQ(self.directory, self.state, self.processes)
        self.postgres = postgres.Postgres(self.directory, self.state, self.processes, durable=durable)
        self.mosquitto = mosquitto.Mosquitto(self.directory, self.state, self.processes)
        self._started: dict[str, tuple[Service, dict[str, str]]] = {}
        self._given = {name: environment[name] for name in _DEFAULT_PORTS if environment.get(name)}
        self._given_management = environment.get(MANAGEMENT_URL)

    @property
    def servers(self) -> dict[str, Server]:
        """The private servers by the variable that names them; those given from outside are not among them."""
        own: dict[str, Server] = {AMQP_URL: self.rabbitmq, DATABASE_URL: self.postgres, MQTT_URL: self.mosquitto}
        return {name: server for name, server in own.items() if name not in self._given}

    @property
    def urls(self) -> dict[str, str]:
        """What services and tests need to know, by environment variable."""
        return dict(self.state.read().urls)

    def start_infrastructure(self) -> None:
        """Start RabbitMQ, PostgreSQL and Mosquitto, those that don't run yet, at the same time.

        Raises:
            StackError: one of them can't be started, or a given one does not answer. Nothing is left running then.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        for name, url in self._given.items():
            self._check_answer(name, url)
        waiting = [
            server
            for name, server in (
                (rabbitmq.NAME, self.servers.get(AMQP_URL)),
                (postgres.NAME, self.servers.get(DATABASE_URL)),
                (mosquitto.NAME, self.servers.get(MQTT_URL)),
            )
            if server is not None and not self.processes.is_alive(name)
        ]
        with ThreadPoolExecutor(max_workers=3, thread_name_prefix="start") as pool:
            starts = [pool.submit(server.start) for server in waiting]
            try:
                for start in starts:
                    start.result()
            except BaseException:
                self.processes.close()  # lets the other starts fail at once, instead of waiting for them
                raise
        urls = self._given | {name: server.url for name, server in self.servers.items()}
        if AMQP_URL in self.servers:
            urls[MANAGEMENT_URL] = self.rabbitmq.management_url
        elif self._given_management:
            urls[MANAGEMENT_URL] = self._given_management
        self.state.change(urls=self.urls | urls)

    def migrate(self, **settings: str) -> None:
        """Bring the database's schema up to date."""
        self.processes.run(services.MIGRATE.name, self._program(services.MIGRATE, self.urls | settings))

    def start_service(self, service: Service, **settings: str) -> None:
        """Start one of Laneway's services and wait until it is ready. `settings` go before everything else."""
        self.start_services([service], **settings)

    def start_services(self, wanted: Iterable[Service], **settings: str) -> None:
        """Start several services at the same time and wait until all are ready.

        Raises:
            NotReadyError: one of them ended or was not ready in time.
        """
        waiting = [service for service in wanted if not self.processes.is_alive(service.name)]
        self._started |= {service.name: (service, settings) for service in waiting}
        with ThreadPoolExecutor(max_workers=max(1, len(waiting)), thread_name_prefix="start") as pool:
            starts = [pool.submit(self._start, service, settings) for service in waiting]
            try:
                for start in starts:
                    start.result()
            except BaseException:
                for service in waiting:
                    self.processes.send(service.name, signal.SIGKILL)
                raise
        known = self.state.read().services
        self.state.change(services=tuple(dict.fromkeys([*known, *(service.name for service in waiting)])))

    def wait_for_heartbeats(self, wanted: Iterable[Service]) -> None:
        """Wait until the center has heard of each of these that sends heartbeats: before, commands are refused.

        Raises:
            StackError: it didn't in time.
        """
        missing = {service.name for service in wanted if service.heartbeats}
        url = self.urls.get("LANEWAY_API_URL")
        deadline = time.monotonic() + services.READY_TIMEOUT_S
        while url and missing:
            if time.monotonic() > deadline:
                raise StackError(
                    f"the center hears nothing from {', '.join(sorted(missing))}; see {self.directory}/logs"
                )
            with suppress(httpx.HTTPError):
                heard = httpx.get(f"{url}/registry/instances", timeout=5.0, trust_env=False).raise_for_status().json()
                missing -= {each["instance"] for each in heard if each["state"] == "online"}
            if missing:
                time.sleep(0.1)

    def stop_service(self, name: str, patience_s: float = 20.0) -> bool:
        """Ask a service to end; kill it after `patience_s`. Return whether it ended by itself."""
        return not self.processes.stop([name], patience_s)

    def stop_services(self, names: Iterable[str], patience_s: float = 20.0) -> list[str]:
        """Ask several services to end at the same time; return those that had to be killed."""
        return self.processes.stop(names, patience_s)

    def restart_service(self, name: str, patience_s: float = 20.0) -> None:
        """Stop a service, if it runs, and start it with the same settings on the same port."""
        self.processes.stop([name], patience_s)
        service, settings = self._started[name]
        self.start_service(service, **settings)

    def kill_service(self, name: str) -> None:
        """End a service at once."""
        self.processes.send(name, signal.SIGKILL)

    def pause_service(self, name: str) -> None:
        """Let a service hang until `resume_service`."""
        self.processes.send(name, signal.SIGSTOP)

    def resume_service(self, name: str) -> None:
        """Let a paused service go on."""
        self.processes.send(name, signal.SIGCONT)

    def service_url(self, name: str) -> str:
        """Return the HTTP address of a running service."""
        return f"http://{LOOPBACK}:{self.state.read().ports[name]}"

    def down(self) -> None:
        """End everything this stack started, by whichever process, and remove its data. Logs stay."""
        state = self.state.read()
        servers = {rabbitmq.MAPPER, rabbitmq.NAME, postgres.NAME, mosquitto.NAME}
        self.processes.stop([name for name in state.children if name not in servers])
        self.processes.stop([name for name in state.children if name in servers - {rabbitmq.MAPPER}])
        self.processes.stop([rabbitmq.MAPPER], 2.0)
        self.processes.stop_strays()
        for folder in state.folders:
            postgres.remove_folder(Path(folder))
        for name in (rabbitmq.NAME, postgres.NAME, mosquitto.NAME):
            shutil.rmtree(self.directory / name, ignore_errors=True)
        (self.directory / "stack.env").unlink(missing_ok=True)
        self.state.remove()

    def is_abandoned(self) -> bool:
        """Whether the process that started this stack is gone: a test run or demo that was killed."""
        starter = self.state.read().starter
        return starter is None or not is_alive(starter)

    def missing(self) -> list[str]:
        """Names of processes that should run and don't."""
        state = self.state.read()
        own = {AMQP_URL: (rabbitmq.MAPPER, rabbitmq.NAME), DATABASE_URL: (postgres.NAME,), MQTT_URL: (mosquitto.NAME,)}
        names = [child for variable in self.servers for child in own[variable]]
        return [name for name in (*names, *state.services) if not self.processes.is_alive(name)]

    def _start(self, service: Service, settings: Mapping[str, str]) -> None:
        base = self.urls | dict(service.settings) | {"LANEWAY_INSTANCE": service.name} | dict(settings)
        log = self.processes.log(service.name)
        seen = log.stat().st_size if log.exists() else 0
        if service.serves_http:
            port = settle(
                self.processes,
                service.name,
                launch=lambda at: self.processes.spawn(service.name, self._program(service, base, at)),
                is_ready=partial(self._is_http_ready, service.name),
                port=self.state.read().ports.get(service.name),
                timeout_s=services.READY_TIMEOUT_S,
            )
            self.state.put("ports", service.name, port)
            if service.url:
                self.state.put("urls", service.url, self.service_url(service.name))
            return
        self.processes.spawn(service.name, self._program(service, base))
        if service.ready_line:
            line = service.ready_line.encode()
            self.processes.wait_until(service.name, lambda: line in log.read_bytes()[seen:], services.READY_TIMEOUT_S)
        elif self.processes.has_ended(service.name, SETTLED_S):
            raise StackError(f"{service.name} ended at once ({self.processes.last_line(service.name)}); see {log}")

    def _program(self, service: Service, settings: Mapping[str, str], port: int | None = None) -> Program:
        http = {} if port is None else {"LANEWAY_HTTP_HOST": LOOPBACK, "LANEWAY_HTTP_PORT": str(port)}
        return Program(
            command=[services.script(service.command[0]), *service.command[1:]],
            settings={**settings, **http},
            folder=self.directory,
        )

    def _is_http_ready(self, name: str, port: int) -> bool:
        if not is_listener(self.processes.pids(name), port):
            return False
        try:
            return httpx.get(f"http://{LOOPBACK}:{port}/readyz", timeout=2.0, trust_env=False).is_success
        except httpx.TransportError:
            return False

    @staticmethod
    def _check_answer(name: str, url: str) -> None:
        parts = urlsplit(url)
        host, port = parts.hostname or "localhost", parts.port or _DEFAULT_PORTS[name]
        if not answers(host, port, timeout_s=5.0):
            raise StackError(f"{name} names {host}:{port}, where nothing answers.")


def up(stack: Stack, wanted: Iterable[Service]) -> State:
    """Start a stack that stays after this process, or complete one that lost processes. Writes stack.env.

    Raises:
        StackError: it can't be started; nothing is left running then.
    """
    if not stack.state.read().complete:
        stack.down()  # what an earlier start left behind
    stack.state.claim()
    try:
        stack.start_infrastructure()
        kept = [service for name in stack.state.read().services if (service := services.by_name(name))]
        everything = {service.name: service for service in (*kept, *wanted)}
        if everything:
            stack.migrate()
            stack.start_services(everything.values())
            stack.wait_for_heartbeats(everything.values())
    except BaseException:
        stack.down()
        raise
    write_environment(stack)
    return stack.state.change(complete=True)


@contextmanager
def running(stack: Stack, wanted: Iterable[Service] = ()) -> Iterator[Stack]:
    """Run a stack for the length of a block; afterwards nothing of it is left."""
    with stack.state.held():
        try:
            up(stack, wanted)
            yield stack
        finally:
            stack.down()


def write_environment(stack: Stack) -> None:
    """Write stack.env: KEY=VALUE lines, readable for the owner alone, since URLs hold passwords."""
    path = stack.directory / "stack.env"
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.writelines(f"{name}={value}\n" for name, value in sorted(stack.urls.items()))


def sweep(directory: Path) -> None:
    """Clean up the stacks in folders right below `directory`/tests, and the demo's, whose starter was killed."""
    for folder in (directory / "demo", *(directory / "tests").glob("*")):
        stack = Stack(folder)
        if stack.state.path.exists() and stack.is_abandoned():
            stack.down()
