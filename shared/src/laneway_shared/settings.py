"""Settings that several services share. Each service has one frozen settings class built on this."""

import os
import socket
from typing import Any, TypeVar

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from laneway_shared.errors import SettingsError


def own_name() -> str:
    """Host name and process id, fit for a routing key."""
    host = "".join(c if c.isalnum() or c in "_-" else "-" for c in socket.gethostname())[:40]
    return f"{host}-{os.getpid()}"


class ServiceSettings(BaseSettings):
    """What every service needs. Read from the environment (`LANEWAY_…`), built once, passed down."""

    model_config = SettingsConfigDict(env_prefix="LANEWAY_", frozen=True, extra="ignore", env_ignore_empty=True)

    amqp_url: str = Field("amqp://guest:guest@localhost:5672/", description="RabbitMQ, as an AMQP URL.")
    topology_prefix: str = Field("dc3", pattern=r"^[A-Za-z0-9_-]{1,32}$", description="Prefix of all queue names.")
    instance: str = Field(
        default_factory=own_name,
        pattern=r"^[A-Za-z0-9_-]{1,64}$",
        description="Name of this process in heartbeats and results; unique among running processes.",
    )
    log_level: str = Field("INFO", pattern=r"^(DEBUG|INFO|WARNING|ERROR)$", description="Least level that is logged.")
    heartbeat_every_s: float = Field(5.0, gt=0, description="Seconds between heartbeats.")


SettingsT = TypeVar("SettingsT", bound=BaseSettings)


def load(kind: type[SettingsT], **overrides: Any) -> SettingsT:
    """Build the settings from the environment.

    Raises:
        SettingsError: names each variable that can't be used and why.
    """
    try:
        return kind(**overrides)
    except ValidationError as error:
        prefix = kind.model_config.get("env_prefix", "")
        faults = "; ".join(
            f"{prefix}{'_'.join(str(part) for part in fault['loc']).upper()}: {fault['msg']}"
            for fault in error.errors(include_input=False, include_url=False)
        )
        raise SettingsError(faults) from None
