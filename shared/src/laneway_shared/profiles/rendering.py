"""From a command to the MQTT message its device understands."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from laneway_shared.errors import LanewayError
from laneway_shared.messages import Target, is_routing_name
from laneway_shared.profiles import templates
from laneway_shared.profiles.model import Profile
from laneway_shared.profiles.templates import Scalar

LEAST_EXPIRY_S = 1
MOST_EXPIRY_S = 2**32 - 1  # MQTT 5 has four bytes for it


class CommandNotRenderableError(LanewayError):
    """The command can't be written as its profile asks; trying again would not help."""

    code = "COMMAND_NOT_RENDERABLE"


@dataclass(frozen=True, kw_only=True)
class MqttCommand:
    """A message to publish, never retained."""

    topic: str
    payload: bytes
    qos: int
    expiry_s: int | None
    """Seconds after which the broker drops it (MQTT 5)."""
    correlation_data: bytes | None = None
    """What the device copies into its answer (MQTT 5), where the profile correlates by it."""


def render_command(
    profile: Profile,
    target: Target,
    *,
    command_id: str,
    attempt: int,
    tenant_id: int,
    op: str,
    value: str | None,
    valid_until: datetime,
    valid_for_s: float,
) -> MqttCommand:
    """The MQTT message for one attempt.

    `op` is read or write, `valid_until` the end of the start window, `valid_for_s` the seconds left of it.
    The device's model, where a template names it, comes from `target.address["model"]`.

    Raises:
        CommandNotRenderableError: a name that may not stand in a topic, a variable without a value, no hex digits.
    """
    model = target.address.get("model")
    variables: dict[str, Scalar] = {
        "tenant": tenant_id,
        "sn": target.device_sn,
        "point": target.point,
        "commandId": command_id,
        "attempt": attempt,
        "value": value,
        "op": op,
        "validUntilMs": round(valid_until.timestamp() * 1000),
    }
    if isinstance(model, str):
        variables["model"] = model
    rules = profile.command
    correlation = profile.ack.correlation
    try:
        return MqttCommand(
            topic=_topic(rules.topic, variables),
            payload=_payload(rules.codec, rules.payload, variables),
            qos=rules.qos,
            expiry_s=_expiry(valid_for_s) if rules.message_expiry else None,
            correlation_data=templates.fill(correlation.pattern, variables).encode()
            if correlation.source == "correlation_data" and correlation.pattern
            else None,
        )
    except KeyError as missing:
        raise CommandNotRenderableError(
            f"profile {profile.name} needs {{{missing.args[0]}}}, and the device's address has none",
        ) from None


def _topic(template: str, variables: dict[str, Scalar]) -> str:
    for _, name in templates.parts(template):
        if name is not None and not is_routing_name(str(variables[name])):
            # a + # or / in a name would reach other devices than the one that is meant
            raise CommandNotRenderableError(
                f"{name} {str(variables[name])[:80]!r} may not stand in a topic: "
                "letters, digits, _ and - only, at most 64",
            )
    return templates.fill(template, variables)


def _payload(codec: str, template: Any, variables: dict[str, Scalar]) -> bytes:
    if codec == "json":
        return msgspec.json.encode(_tree(template, variables))
    text = templates.fill(template, variables)
    if codec == "text":
        return text.encode()
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise CommandNotRenderableError(f"{text[:80]!r} are not hex digits") from None


def _tree(template: Any, variables: dict[str, Scalar]) -> Any:
    if isinstance(template, str):
        return templates.fill_leaf(template, variables)
    if isinstance(template, dict):
        return {key: _tree(member, variables) for key, member in template.items()}
    if isinstance(template, list):
        return [_tree(member, variables) for member in template]
    return template


def _expiry(valid_for_s: float) -> int:
    return min(max(int(valid_for_s), LEAST_EXPIRY_S), MOST_EXPIRY_S)
