"""Laneway's own services: what runs in a local stack, as data."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

READY_TIMEOUT_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Service:
    """One service process.

    `command` starts with a console script of this virtual environment. `settings` are environment variables besides
    the URLs of the infrastructure. With `url` (the name of a variable in stack.env) it serves HTTP on a port given as
    LANEWAY_HTTP_PORT and is ready when /readyz says so; without, when its log holds `ready_line`. With `heartbeats`
    the center hears of it under the instance name, which is its name here.
    """

    name: str
    command: tuple[str, ...]
    settings: Mapping[str, str] = field(default_factory=dict)
    url: str | None = None
    serves_http: bool = False
    ready_line: str | None = None
    heartbeats: bool = False


MIGRATE = Service(name="migrate", command=("laneway-center", "migrate"))

SIMULATOR = Service(name="simulator", command=("laneway-simulator",), url="LANEWAY_SIMULATOR_URL", serves_http=True)
ACK_LISTENER = Service(
    name="ack-listener",
    command=("laneway-ack-listener",),
    settings={"LANEWAY_LOG_LEVEL": "INFO"},
    ready_line='"mqtt.listening"',
    heartbeats=True,
)


def center(number: int = 1, roles: str = "api,dispatch,record,schedule") -> Service:
    """Return the `number`-th center; the first one's URL is the stack's."""
    return Service(
        name=_numbered("center", number),
        command=("laneway-center",),
        settings={"LANEWAY_ROLES": roles},
        url="LANEWAY_API_URL" if number == 1 else None,
        serves_http=True,
    )


def driver(adapter: str, number: int = 1) -> Service:
    """Return the `number`-th replica of the driver with this adapter; its service is called like the adapter."""
    return Service(
        name=_numbered(f"driver-{adapter}", number),
        command=("laneway-driver",),
        settings={"LANEWAY_ADAPTER": adapter, "LANEWAY_SERVICE": adapter, "LANEWAY_LOG_LEVEL": "INFO"},
        ready_line='"broker.consuming"',
        heartbeats=True,
    )


def all_services(*, centers: int = 1, drivers: int = 1) -> tuple[Service, ...]:
    """Everything a stack runs: so many centers, and so many replicas of each driver."""
    return (
        *(center(number) for number in range(1, centers + 1)),
        *(driver(adapter, number) for adapter in ("virtual", "mqtt") for number in range(1, drivers + 1)),
        ACK_LISTENER,
        SIMULATOR,
    )


def by_name(name: str) -> Service | None:
    """Return the service a stack calls `name`."""
    kind, _, number = name.rpartition("-")
    if not number.isdigit():
        kind, number = name, "1"
    known = (center(int(number)), driver("virtual", int(number)), driver("mqtt", int(number)), ACK_LISTENER, SIMULATOR)
    return next((service for service in known if service.name == name and kind), None)


def script(name: str) -> Path:
    """Return the path of a console script of the virtual environment this process runs in."""
    return Path(sys.executable).parent / name


def _numbered(name: str, number: int) -> str:
    return name if number == 1 else f"{name}-{number}"
