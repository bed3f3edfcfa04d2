"""Which dead letters are meant: options that list, replay and discard share."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Annotated, Any

import typer


class State(StrEnum):
    """What became of an entry."""

    OPEN = "open"
    REPLAYED = "replayed"
    DISCARDED = "discarded"


class Kind(StrEnum):
    """What an entry is."""

    COMMAND = "command"
    MESSAGE = "message"


class Ended(StrEnum):
    """How a command ended."""

    DEAD = "DEAD"
    EXPIRED = "EXPIRED"
    TIMEOUT = "TIMEOUT"


class Reason(StrEnum):
    """Why it is dead."""

    EXPIRED = "expired"
    TIMEOUT = "timeout"
    ATTEMPTS = "attempts"
    REJECTED = "rejected"
    DELIVERY_LIMIT = "delivery_limit"
    UNREADABLE = "unreadable"
    UNKNOWN_COMMAND = "unknown_command"
    REFUSED_VALUE = "refused_value"
    REFUSED_TRANSITION = "refused_transition"


DriverOption = Annotated[str | None, typer.Option("--driver", metavar="NAME", help="Of this driver service.")]
WhyDeadOption = Annotated[list[Reason] | None, typer.Option("--why-dead", help="Why it is dead; repeatable.")]
ListedReasonOption = Annotated[
    list[Reason] | None, typer.Option("--why-dead", "--reason", help="Why it is dead; repeatable.")
]
StatusOption = Annotated[list[Ended] | None, typer.Option("--status", help="How the command ended; repeatable.")]
ErrorCodeOption = Annotated[str | None, typer.Option("--error-code", metavar="CODE", help="With this error.")]
CommandOption = Annotated[str | None, typer.Option("--command", metavar="UUID", help="Of this command.")]
KindOption = Annotated[Kind | None, typer.Option("--kind", help="Commands, or messages of no known command.")]


@dataclass(frozen=True, kw_only=True)
class Filter:
    """What is meant; nothing said: all."""

    driver: str | None = None
    device: int | None = None
    command: str | None = None
    kind: Kind | None = None
    reasons: list[Reason] | None = None
    statuses: list[Ended] | None = None
    error_code: str | None = None
    since: str | None = None
    until: str | None = None

    @property
    def is_empty(self) -> bool:
        """Whether it leaves nothing out."""
        return not any(getattr(self, field.name) for field in fields(self))

    def query(self, *states: State) -> Mapping[str, Any]:
        """As the center takes it."""
        return {
            "state": [state.value for state in states] or None,
            "driver": self.driver,
            "deviceId": self.device,
            "commandId": self.command,
            "kind": self.kind and self.kind.value,
            "reason": [each.value for each in self.reasons or ()] or None,
            "status": [each.value for each in self.statuses or ()] or None,
            "errorCode": self.error_code,
            "from": self.since,
            "to": self.until,
        }
