"""A private PostgreSQL 15+: one cluster of its own, TCP on loopback only, a password of its own."""

import os
import pwd
import secrets
import shutil
import signal
import subprocess
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

from laneway_local.errors import NotReadyError, StackError
from laneway_local.ports import LOOPBACK
from laneway_local.processes import Processes, Program, settle
from laneway_local.state import StateFile

NAME = "postgres"
LEAST_VERSION = 15
USER = "laneway"
DATABASE = "laneway"
READY_TIMEOUT_S = 60.0
OUTSIDE = Path("/var/tmp")  # noqa: S108 - only a folder of a random name, made with mode 0700, is used
OUTSIDE_PREFIX = "laneway-postgres-"
_STATUS_LINE = 7  # of postmaster.pid: "ready" once connections are accepted


class Postgres:
    """Starts and stops the cluster. `durable` False gives up safety against power loss, for quicker tests."""

    def __init__(self, directory: Path, state: StateFile, processes: Processes, *, durable: bool = True) -> None:
        self._directory = directory / NAME
        self._state = state
        self._processes = processes
        self._durable = durable

    @property
    def url(self) -> str:
        """Where the database is, with its password."""
        state = self._state.read()
        return f"postgresql://{USER}:{state.secrets[NAME]}@{LOOPBACK}:{state.ports[NAME]}/{DATABASE}"

    def start(self) -> None:
        """Start the cluster, made first if there is none, on its earlier port if it had one."""
        binaries = folder_of_binaries()
        if binaries is None:
            raise StackError(f"PostgreSQL {LEAST_VERSION} or newer is not installed.")
        data = self._data_folder()
        is_new = not (data / "laneway.ready").exists()
        if is_new:
            self._make_cluster(binaries, data)
        port = settle(
            self._processes,
            NAME,
            launch=lambda at: self._launch(binaries, data, at),
            is_ready=lambda _: self._is_ready(data),
            port=self._state.read().ports.get(NAME),
            timeout_s=READY_TIMEOUT_S,
        )
        self._state.put("ports", NAME, port)
        if is_new:
            create_database(self.url, DATABASE)
            (data / "laneway.ready").touch()

    def stop(self) -> None:
        """Stop it; its data stays for the next `start`."""
        self._processes.stop([NAME])

    def kill(self) -> None:
        """End it without a checkpoint, as a crash would: the next `start` recovers from the log.

        By its own signal for that (SIGQUIT), which also ends its sessions; after SIGKILL they would linger and keep
        the next start from succeeding.
        """
        self._processes.send(NAME, signal.SIGQUIT)
        self._processes.stop([NAME])

    def _data_folder(self) -> Path:
        """Return the folder of the cluster. PostgreSQL refuses root, and its user can't enter root's home."""
        if os.geteuid() != 0:
            return self._directory / "data"
        for folder in self._state.read().folders:
            if Path(folder).name.startswith(OUTSIDE_PREFIX):
                return Path(folder) / "data"
        folder = str(OUTSIDE / f"{OUTSIDE_PREFIX}{secrets.token_hex(6)}")
        self._state.change(folders=(*self._state.read().folders, folder))  # first recorded, then made
        return Path(folder) / "data"

    def _make_cluster(self, binaries: Path, data: Path) -> None:
        shutil.rmtree(data, ignore_errors=True)  # a start that was cut short
        data.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        password = secrets.token_urlsafe(18)
        self._state.put("secrets", NAME, password)
        password_file = data.parent / "password"
        with os.fdopen(os.open(password_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(password)
        if (user := _user()) is not None:
            shutil.chown(data.parent, user)
            shutil.chown(password_file, user)
        command = [
            *(binaries / "initdb", "--pgdata", data, "--username", USER, "--pwfile", password_file),
            *("--auth", "scram-sha-256", "--encoding", "UTF8", "--locale", "C"),
            *(() if self._durable else ("--no-sync",)),
        ]
        self._processes.run("initdb", Program(command=command, user=user, folder=data.parent))
        password_file.unlink()

    def _launch(self, binaries: Path, data: Path, port: int) -> None:
        options = {
            "listen_addresses": LOOPBACK,
            "port": str(port),
            "unix_socket_directories": "",
            "max_connections": "200",
            "idle_in_transaction_session_timeout": "60s",
            "shared_buffers": "128MB",
            "jit": "off",
            # files in the data folder, which are gone with it also after a kill
            "dynamic_shared_memory_type": "mmap",
            **({} if self._durable else {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}),
        }
        settings = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        self._processes.spawn(
            NAME,
            Program(
                command=[binaries / "postgres", "-D", data, *settings],
                user=_user(),
                folder=data.parent,
                stop_signal=signal.SIGINT,  # ends sessions and shuts down; SIGTERM would wait for clients
            ),
        )

    def _is_ready(self, data: Path) -> bool:
        try:
            lines = (data / "postmaster.pid").read_text().splitlines()
        except OSError:
            return False
        return (
            len(lines) > _STATUS_LINE
            and lines[_STATUS_LINE].strip() == "ready"
            and int(lines[0]) in self._processes.pids(NAME)
        )


def folder_of_binaries() -> Path | None:
    """Return the folder of the newest PostgreSQL server that is new enough; Debian keeps them off the PATH."""
    installed = [
        (int(folder.name), folder / "bin")
        for folder in Path("/usr/lib/postgresql").glob("*")
        if folder.name.isdigit() and all((folder / "bin" / tool).exists() for tool in ("postgres", "initdb", "psql"))
    ]
    if installed and max(installed)[0] >= LEAST_VERSION:
        return max(installed)[1]
    on_path = shutil.which("postgres")
    if on_path is None:
        return None
    shown = subprocess.run([on_path, "--version"], capture_output=True, text=True, check=False).stdout  # noqa: S603
    digits = shown.rpartition(") ")[2].partition(".")[0]
    return Path(on_path).resolve().parent if digits.isdigit() and int(digits) >= LEAST_VERSION else None


def create_database(url: str, name: str) -> str:
    """Create an empty database on the server of `url`; return its own URL."""
    _psql(url, f'CREATE DATABASE "{name}"')
    return urlunsplit(urlsplit(url)._replace(path=f"/{name}"))


def drop_database(url: str, name: str) -> None:
    """Drop a database on the server of `url`, also when somebody is still connected to it."""
    _psql(url, f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


def remove_folder(folder: Path) -> None:
    """Remove a data folder outside of the stack's directory, and the shared memory a killed server left."""
    if not folder.name.startswith(OUTSIDE_PREFIX) or folder.is_symlink():
        return
    left = folder / "data" / "postmaster.pid"
    if left.exists():
        _remove_segment(left.read_text().splitlines())
    shutil.rmtree(folder, ignore_errors=True)


def _remove_segment(lines: list[str]) -> None:
    """`ipcrm` the segment named on line 7 of postmaster.pid ("key id"): nothing else would, once the data is gone."""
    numbers = lines[6].split() if len(lines) > 6 else []  # noqa: PLR2004
    tool = shutil.which("ipcrm")
    if tool and len(numbers) == 2:  # noqa: PLR2004
        subprocess.run([tool, "-m", numbers[1]], capture_output=True, check=False)  # noqa: S603


def _psql(url: str, statement: str) -> None:
    binaries = folder_of_binaries()
    if binaries is None:
        raise StackError(f"PostgreSQL {LEAST_VERSION} or newer is not installed.")
    parts = urlsplit(url)
    done = subprocess.run(  # noqa: S603
        [
            *(binaries / "psql", "--no-psqlrc", "--quiet", "--set", "ON_ERROR_STOP=1", "--dbname", "postgres"),
            *("--host", parts.hostname or LOOPBACK, "--port", str(parts.port or 5432)),
            *("--username", unquote(parts.username or USER), "--command", statement),
        ],
        env={**os.environ, "PGPASSWORD": unquote(parts.password or ""), "PGCONNECT_TIMEOUT": "10"},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if done.returncode:
        raise NotReadyError(f"PostgreSQL refused: {(done.stderr.strip().splitlines() or ['no reason given'])[-1]}")


def _user() -> str | None:
    """Return the user to become: PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name).pw_name
        except KeyError:
            continue
    raise StackError("PostgreSQL does not run as root, and there is no user postgres; create one.")
