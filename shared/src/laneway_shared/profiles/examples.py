"""Holding a profile to its own examples."""

from typing import Any

import msgspec

from laneway_shared.errors import LanewayError, UnreadableMessageError
from laneway_shared.messages import Target
from laneway_shared.profiles.answers import parse_ack
from laneway_shared.profiles.model import AnswerExample, AnswerExpected, CommandExample, CommandExpected, Profile
from laneway_shared.profiles.rendering import render_command


def example_faults(profile: Profile) -> list[str]:
    """One line per example that comes out otherwise; empty when all agree."""
    faults: list[str] = []
    for position, command in enumerate(profile.examples.commands):
        faults += [f"examples.commands.{position}: {fault}" for fault in _command_faults(profile, command)]
    for position, answer in enumerate(profile.examples.answers):
        faults += [f"examples.answers.{position}: {fault}" for fault in _answer_faults(profile, answer)]
    return faults


def _command_faults(profile: Profile, example: CommandExample) -> list[str]:
    given = example.given
    try:
        made = render_command(
            profile,
            Target(
                device_sn=given.sn,
                point=given.point,
                profile=profile.name,
                address={} if given.model is None else {"model": given.model},
            ),
            command_id=given.commandId,
            attempt=given.attempt,
            tenant_id=given.tenant,
            op=given.op,
            value=given.value,
            valid_until=given.validUntil,
            valid_for_s=given.validFor,
        )
    except LanewayError as error:
        return [error.message]
    payload: Any = made.payload.hex() if profile.command.codec == "hex" else made.payload.decode()
    if profile.command.codec == "json":
        payload = msgspec.json.decode(payload)
    came = CommandExpected(topic=made.topic, qos=profile.command.qos, payload=payload, expiry=made.expiry_s)
    return [] if came == example.expect else [f"expected {example.expect!r}, got {came!r}"]


def _answer_faults(profile: Profile, example: AnswerExample) -> list[str]:
    payload = _payload(profile, example.payload)
    correlation = None if example.correlation_data is None else example.correlation_data.encode()
    try:
        result = parse_ack(profile, example.topic, payload, correlation)
    except UnreadableMessageError as error:
        if example.unreadable is not None and example.unreadable in error.message:
            return []
        return [f"unreadable: {error.message}"]
    came = AnswerExpected(
        status=result.status.value,
        deviceSn=result.device_sn or "",
        commandId=result.command_id,
        attempt=result.attempt,
        value=result.response_value,
        code=result.error_code,
        message=result.error_message,
        retryable=result.retryable,
    )
    return [] if came == example.expect else [f"expected {example.expect or example.unreadable!r}, got {came!r}"]


def _payload(profile: Profile, payload: Any) -> bytes:
    if isinstance(payload, str):
        return bytes.fromhex(payload) if profile.ack.codec == "hex" else payload.encode()
    return msgspec.json.encode(payload)
