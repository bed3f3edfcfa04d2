"""Where the MQTT broker is, from a URL."""

from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

_PORTS = {"mqtt": 1883, "mqtts": 8883}


@dataclass(frozen=True, kw_only=True)
class MqttAddress:
    """Host, port and who we are there. The password is in no text made from it."""

    host: str
    port: int
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: bool = False

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def parse_address(url: str) -> MqttAddress:
    """The address in `mqtt://[user:password@]host[:port]`, or `mqtts://` for TLS.

    Raises:
        ValueError: says what is wrong without repeating the URL, which may hold a password.
    """
    parts = urlsplit(url)
    if parts.scheme not in _PORTS:
        raise ValueError("an MQTT URL starts with mqtt:// or mqtts://")
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        raise ValueError("the port of the MQTT URL is not a number up to 65535") from None
    if not host:
        raise ValueError("the MQTT URL names no host")
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        raise ValueError("an MQTT URL ends after the port; percent-encode / ? # in user or password")
    return MqttAddress(
        host=host,
        port=_PORTS[parts.scheme] if port is None else port,
        username=None if parts.username is None else unquote(parts.username),
        password=None if parts.password is None else unquote(parts.password),
        tls=parts.scheme == "mqtts",
    )
