"""A private RabbitMQ 3.10+ node with an Erlang port mapper, cookie and folders of its own."""

import hashlib
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
from pathlib import Path

from laneway_local.errors import NotReadyError, StackError
from laneway_local.ports import LOOPBACK, answers, free_port, is_listener, is_taken
from laneway_local.processes import Processes, Program, settle
from laneway_local.state import StateFile

NAME = "rabbitmq"
MAPPER = "epmd"
MANAGEMENT = "rabbitmq-management"
LEAST_VERSION = (3, 10)
USER = "laneway"
READY_TIMEOUT_S = 90.0
MAPPER_TIMEOUT_S = 15.0
MEMORY_LIMIT = "1GB"
DISK_LIMIT = "100MB"

_GREETING = b"AMQP\x00\x00\x09\x01"
_ERLANG_OPTIONS = "+S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none -kernel inet_dist_use_interface {127,0,0,1}"


class RabbitMQ:
    """Starts and stops the node. Its data survives `stop` and `kill`, as a broker's should."""

    def __init__(self, directory: Path, state: StateFile, processes: Processes) -> None:
        self._directory = directory / NAME
        self._state = state
        self._processes = processes

    @property
    def url(self) -> str:
        """Where it is, with its password."""
        state = self._state.read()
        return f"amqp://{USER}:{state.secrets[NAME]}@{LOOPBACK}:{state.ports[NAME]}/"

    @property
    def management_url(self) -> str:
        """Where its management HTTP API is, with its password. AMQP can't list bindings, nor queues nobody named."""
        state = self._state.read()
        return f"http://{USER}:{state.secrets[NAME]}@{LOOPBACK}:{state.ports[MANAGEMENT]}"

    def start(self) -> None:
        """Start the node, on its earlier port if it had one."""
        scripts = folder_of_scripts()
        if scripts is None:
            raise StackError(f"RabbitMQ {'.'.join(map(str, LEAST_VERSION))} or newer is not installed.")
        for folder in ("home", "mnesia", "log", "generated", "schema"):
            (self._directory / folder).mkdir(parents=True, exist_ok=True)
        if NAME not in self._state.read().secrets:
            self._state.put("secrets", NAME, secrets.token_urlsafe(18))
        self._start_mapper()
        port = settle(
            self._processes,
            NAME,
            launch=lambda at: self._launch(scripts, at),
            is_ready=self._is_ready,
            port=self._state.read().ports.get(NAME),
            timeout_s=READY_TIMEOUT_S,
        )
        self._state.put("ports", NAME, port)

    def stop(self) -> None:
        """Stop the node in order. Its port mapper stays until the stack ends."""
        self._processes.stop([NAME])

    def kill(self) -> None:
        """End the node at once, as a power cut would."""
        self._processes.send(NAME, signal.SIGKILL)

    def control(self, *words: str, timeout_s: float = 60.0) -> str:
        """Run `rabbitmqctl` against this node and return what it printed."""
        scripts = folder_of_scripts()
        if scripts is None:
            raise StackError("RabbitMQ is not installed.")
        done = subprocess.run(  # noqa: S603
            [scripts / "rabbitmqctl", "--quiet", *words],
            env={**os.environ, **self._settings()},
            cwd=self._directory,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        if done.returncode:
            reason = " ".join(done.stderr.split())[:300]
            raise NotReadyError(f"rabbitmqctl {words[0]} failed: {reason or 'no reason given'}")
        return done.stdout

    def _start_mapper(self) -> None:
        """Start epmd as a child: the node would start one itself, which would outlive it."""
        if self._processes.is_alive(MAPPER):
            return
        tool = shutil.which("epmd")
        if tool is None:
            raise StackError("epmd (Debian package erlang-base) is not installed.")
        port = settle(
            self._processes,
            MAPPER,
            launch=lambda at: self._processes.spawn(
                MAPPER, Program(command=[tool, "-port", str(at), "-address", LOOPBACK], folder=self._directory)
            ),
            is_ready=lambda at: is_listener(self._processes.pids(MAPPER), at),
            port=self._state.read().ports.get(MAPPER),
            timeout_s=MAPPER_TIMEOUT_S,
        )
        self._state.put("ports", MAPPER, port)

    def _launch(self, scripts: Path, port: int) -> None:
        kept = self._state.read().ports.get(MANAGEMENT)
        self._state.put("ports", MANAGEMENT, free_port() if kept is None or is_taken(kept) else kept)
        self._write_configuration(port)
        self._state.put("ports", "rabbitmq-dist", free_port())
        self._processes.spawn(
            NAME,
            Program(command=[scripts / "rabbitmq-server"], settings=self._settings(), folder=self._directory),
        )

    def _write_configuration(self, port: int) -> None:
        lines = {
            "listeners.tcp.1": f"{LOOPBACK}:{port}",
            "default_user": USER,
            "default_pass": self._state.read().secrets[NAME],
            "log.console": "true",
            "log.console.level": "info",
            "log.file": "false",
            "vm_memory_high_watermark.absolute": MEMORY_LIMIT,
            "disk_free_limit.absolute": DISK_LIMIT,
            "management.tcp.ip": LOOPBACK,
            "management.tcp.port": str(self._state.read().ports[MANAGEMENT]),
            "management.disable_stats": "true",  # what exists is asked for, not how busy it is
            "management_agent.disable_metrics_collector": "true",
        }
        path = self._directory / "rabbitmq.conf"
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.writelines(f"{name} = {value}\n" for name, value in lines.items())
        (self._directory / "enabled_plugins").write_text("[rabbitmq_management].\n")

    def _settings(self) -> dict[str, str]:
        folder = self._directory
        ports = self._state.read().ports
        return {
            "HOME": str(folder / "home"),  # the Erlang cookie lives there
            "ERL_EPMD_PORT": str(ports[MAPPER]),
            "ERL_EPMD_ADDRESS": LOOPBACK,
            "RABBITMQ_NODENAME": f"laneway-{hashlib.sha256(str(folder).encode()).hexdigest()[:12]}@localhost",
            "RABBITMQ_DIST_PORT": str(ports["rabbitmq-dist"]),
            "RABBITMQ_CONF_ENV_FILE": str(folder / "none"),  # the system's own settings are not ours
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_CONFIG_FILES": str(folder / "none.d"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(folder / "none.config"),
            "RABBITMQ_GENERATED_CONFIG_DIR": str(folder / "generated"),
            "RABBITMQ_SCHEMA_DIR": str(folder / "schema"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_PID_FILE": str(folder / "pid"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": _ERLANG_OPTIONS,
            # makes the script become the node instead of staying its parent, so that the id we hold is the node's
            "RUNNING_UNDER_SYSTEMD": "true",
            "NOTIFY_SOCKET": "",
        }

    def _is_ready(self, port: int) -> bool:
        return is_listener(self._processes.pids(NAME), port) and _greets(port)


def folder_of_scripts() -> Path | None:
    """Return the folder of RabbitMQ's own scripts; those on the PATH would change the user."""
    roots = [Path("/usr/lib/rabbitmq/lib"), Path("/opt/rabbitmq/lib"), Path("/usr/local/lib/rabbitmq/lib")]
    installed = [
        (tuple(int(part) for part in found[1].split(".")), folder / "sbin")
        for root in roots
        for folder in root.glob("rabbitmq_server-*")
        if (found := re.search(r"-(\d+\.\d+(?:\.\d+)*)", folder.name)) and (folder / "sbin/rabbitmq-server").exists()
    ]
    if not installed or max(installed)[0] < LEAST_VERSION:
        return None
    return max(installed)[1]


def _greets(port: int) -> bool:
    if not answers(LOOPBACK, port):
        return False
    try:
        with socket.create_connection((LOOPBACK, port), timeout=2) as connection:
            connection.sendall(_GREETING)
            return connection.recv(1) == b"\x01"  # a method frame: connection.start
    except OSError:
        return False
