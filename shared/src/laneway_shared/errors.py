"""Errors with stable codes. A docstring is the default message; codes are part of the interface."""

from typing import ClassVar


class LanewayError(Exception):
    """Something went wrong in Laneway."""

    code: ClassVar[str] = "INTERNAL"

    def __init__(self, message: str = "") -> None:
        super().__init__(message or (self.__doc__ or "").strip())

    @property
    def message(self) -> str:
        """The sentence for a reader: what happened and what to do next."""
        return str(self.args[0])


class UnreadableMessageError(LanewayError):
    """The message can't be read. It is set aside with this reason and never tried again."""

    code = "UNREADABLE"


class BrokerAwayError(LanewayError):
    """RabbitMQ can't be reached right now."""

    code = "BROKER_AWAY"


class TopologyMismatchError(LanewayError):
    """The broker holds an exchange or queue with other arguments than Laneway needs."""

    code = "TOPOLOGY_MISMATCH"


class ProfileError(LanewayError):
    """A device profile is not valid."""

    code = "PROFILE_INVALID"


class SettingsError(LanewayError):
    """A setting is missing or has a value that can't be used."""

    code = "SETTINGS_INVALID"


ERROR_TEXT_LIMIT = 1024  # characters: the width of error_message in the requirement's table
ERROR_CODE_LIMIT = 64


def cut(text: str | None, limit: int = ERROR_TEXT_LIMIT) -> str | None:
    """Shorten a text to the column it is bound for, so that the database never refuses it."""
    if text is None:
        return None
    clean = text.replace("\x00", "�")
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"
