"""The Debian packages the stack needs, and their installation when this user may."""

import subprocess
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from laneway_local import mosquitto, postgres, rabbitmq
from laneway_local.errors import PackagesMissingError

INSTALLER = Path(__file__).with_name("install-packages.sh")


@dataclass(frozen=True, kw_only=True)
class Package:
    """One package: `url` is the variable that makes it unnecessary, `is_there` looks for a version new enough."""

    name: str
    needs: str
    url: str
    is_there: Callable[[], bool]


PACKAGES = (
    Package(
        name="rabbitmq-server",
        needs="RabbitMQ 3.10 or newer",
        url="LANEWAY_AMQP_URL",
        is_there=lambda: rabbitmq.folder_of_scripts() is not None,
    ),
    Package(
        name="postgresql",
        needs="PostgreSQL 15 or newer",
        url="LANEWAY_DATABASE_URL",
        is_there=lambda: postgres.folder_of_binaries() is not None,
    ),
    Package(
        name="mosquitto",
        needs="Mosquitto 2",
        url="LANEWAY_MQTT_URL",
        is_there=lambda: mosquitto.find_program() is not None,
    ),
)


TEST_PACKAGES = (
    Package(
        name="libfaketime",
        needs="libfaketime",
        url="LANEWAY_NO_FAKETIME",
        is_there=lambda: any(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1")),
    ),
)
"""What only some tests need; without it they are skipped, with the reason."""


def run_installer(names: Iterable[str]) -> None:
    """Install these packages without starting their services.

    Raises:
        PackagesMissingError: with the one line that says why not.
    """
    done = subprocess.run(  # noqa: S603 - our own script
        ["/bin/sh", INSTALLER, *names], stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, check=False
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise PackagesMissingError(lines[-1] if lines else f"Could not install {' '.join(names)}.")


def ensure(
    environment: Mapping[str, str],
    packages: Iterable[Package] = PACKAGES,
    install: Callable[[Iterable[str]], None] = run_installer,
) -> None:
    """Install what is missing, except for servers that are given by a URL.

    Raises:
        PackagesMissingError: something is missing, or too old, and can't be installed.
    """
    needed = [package for package in packages if not environment.get(package.url)]
    missing = [package for package in needed if not package.is_there()]
    if not missing:
        return
    install([package.name for package in missing])
    still = [package for package in missing if not package.is_there()]
    if still:
        names = " and ".join(package.needs for package in still)
        urls = " and ".join(package.url for package in still)
        raise PackagesMissingError(f"This system's packages don't bring {names}; give {urls} instead.")
