"""From a device's MQTT message to a result."""

from typing import Any

import msgspec

from laneway_shared.errors import UnreadableMessageError, cut
from laneway_shared.lifecycle import ResultKind
from laneway_shared.messages import VALUE_LIMIT, ResultMessage, is_routing_name
from laneway_shared.profiles import templates
from laneway_shared.profiles.model import AckRules, Correlation, DeviceName, Profile
from laneway_shared.profiles.topics import covers

_MISSING = object()
_decoder = msgspec.json.Decoder()


def parse_ack(profile: Profile, topic: str, payload: bytes, correlation_data: bytes | None = None) -> ResultMessage:
    """What the device's message says about an attempt. `device_sn` is always set.

    Raises:
        UnreadableMessageError: not an answer by this profile, with the reason. Nothing else is raised.
    """
    rules = profile.ack
    if not covers(rules.topic, topic):
        raise UnreadableMessageError(f"topic {topic[:200]!r} is not one of {profile.name}")
    document = _decode(rules.codec, payload)
    segments = topic.split("/")
    device_sn = _device_sn(rules.device_sn, segments, document)
    command_id, attempt = _attempt(rules.correlation, segments, document, correlation_data)
    word = _text(_at(document, rules.outcome.path))
    meaning = None if word is None else rules.outcome.words.get(word)
    if meaning is None:
        raise UnreadableMessageError(f"{_shown(word)} is not a word of {profile.name} for an outcome")
    return ResultMessage(
        status=ResultKind(meaning.status),
        command_id=command_id,
        attempt=attempt,
        response_value=_value(rules, document),
        error_code=meaning.code,
        error_message=_message(rules, document),
        retryable=meaning.retryable,
        device_sn=device_sn,
        matched_by="lane" if rules.correlation.source == "none" else None,
    )


def _decode(codec: str, payload: bytes) -> Any:
    if codec == "hex":
        return payload.hex()
    try:
        return _decoder.decode(payload) if codec == "json" else payload.decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UnreadableMessageError(f"not {'JSON' if codec == 'json' else 'UTF-8'}: {error}") from None


def _at(document: Any, path: str | None) -> Any:
    """The member at a dotted path, or `_MISSING`; without a path the document itself."""
    for step in path.split(".") if path else ():
        if isinstance(document, dict) and step in document:
            document = document[step]
        elif isinstance(document, list) and step.isascii() and step.isdigit() and int(step[:9]) < len(document):
            document = document[int(step[:9])]
        else:
            return _MISSING
    return document


def _text(found: Any) -> str | None:
    """A JSON member as the text that commands and values are written in; null and missing are None."""
    if found is _MISSING or found is None:
        return None
    if isinstance(found, str):
        return found
    return msgspec.json.encode(found).decode()


def _device_sn(rules: DeviceName, segments: list[str], document: Any) -> str:
    names: list[str] = []
    if rules.topic_segment is not None:
        if rules.topic_segment >= len(segments):
            raise UnreadableMessageError("the topic is too short to name a device")
        names.append(segments[rules.topic_segment])
    if rules.payload_path is not None:
        name = _at(document, rules.payload_path)
        if not isinstance(name, str):
            raise UnreadableMessageError(f"{rules.payload_path} doesn't name the device")
        names.append(name)
    if names[0] != names[-1]:
        raise UnreadableMessageError(f"device {_shown(names[-1])} answers on the topic of {_shown(names[0])}")
    if not is_routing_name(names[0]):
        raise UnreadableMessageError(f"{_shown(names[0])} is not a device's name")
    return names[0]


def _attempt(
    rules: Correlation, segments: list[str], document: Any, correlation_data: bytes | None
) -> tuple[str | None, int | None]:
    if rules.pattern is None:
        return None, None
    echoed: Any
    if rules.source == "payload":
        echoed = _at(document, rules.path)
    elif rules.source == "topic":
        place = rules.topic_segment or 0
        echoed = segments[place] if place < len(segments) else _MISSING
    else:
        echoed = (correlation_data or b"").decode(errors="replace")
    found = templates.reader(rules.pattern).fullmatch(echoed) if isinstance(echoed, str) else None
    if found is None:
        shown = "nothing" if echoed is _MISSING else _shown(echoed)
        raise UnreadableMessageError(f"the answer echoes {shown} where {rules.pattern} is due")
    named = found.groupdict()
    return named["commandId"].lower(), int(named["attempt"]) if "attempt" in named else None


def _value(rules: AckRules, document: Any) -> str | None:
    return cut(_text(_at(document, rules.value_path)), VALUE_LIMIT) if rules.value_path else None


def _message(rules: AckRules, document: Any) -> str | None:
    return cut(_text(_at(document, rules.message_path))) if rules.message_path else None


def _shown(found: Any) -> str:
    return repr(found)[:80]
