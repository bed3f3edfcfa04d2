"""Options of the commands that speak to RabbitMQ themselves."""

import re
from typing import Annotated

import typer

AMQP_URL = "amqp://guest:guest@localhost:5672/"
PREFIX = "dc3"
"""As the services have them (laneway_shared.settings); imported from there, help would wait for it."""


def _amqp_url(url: str) -> str:
    if not url.startswith(("amqp://", "amqps://")):
        raise typer.BadParameter("is no URL such as amqp://user:password@host:5672/")
    return url


def _prefix(prefix: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,32}", prefix):
        raise typer.BadParameter("may have letters, digits, _ and - only, at most 32")
    return prefix


AmqpOption = Annotated[
    str, typer.Option("--amqp-url", envvar="LANEWAY_AMQP_URL", metavar="URL", callback=_amqp_url, help="RabbitMQ.")
]
PrefixOption = Annotated[
    str, typer.Option(envvar="LANEWAY_TOPOLOGY_PREFIX", callback=_prefix, help="Prefix of all names.")
]
