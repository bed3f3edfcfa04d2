"""What a profile says about a family of MQTT devices: how to command them and how to read their answers."""

import re
from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from laneway_shared.profiles import templates
from laneway_shared.profiles.topics import filter_fault

Qos = Literal[0, 1]
Codec = Literal["json", "text", "hex"]
_PATH = re.compile(r"[^.\s]+(\.[^.\s]+)*")


def _topic_template(text: str) -> str:
    if "+" in text or "#" in text or "\x00" in text or not text:
        raise ValueError("a command topic is not empty and has no wildcard (+ or #)")
    return templates.check(text, templates.TOPIC_VARIABLES)


def _topic_filter(text: str) -> str:
    fault = filter_fault(text)
    if fault:
        raise ValueError(fault)
    return text


def _path(text: str) -> str:
    if not _PATH.fullmatch(text):
        raise ValueError("a path is names or list positions joined by dots, such as state.value")
    return text


def _correlation_pattern(text: str) -> str:
    templates.check(text, templates.CORRELATION_VARIABLES)
    names = [name for _, name in templates.parts(text) if name]
    if names.count("commandId") != 1 or names.count("attempt") > 1:
        raise ValueError("the pattern holds {commandId} once, and {attempt} once or not at all")
    return text


TopicTemplate = Annotated[str, AfterValidator(_topic_template)]
TopicFilter = Annotated[str, AfterValidator(_topic_filter)]
PayloadPath = Annotated[str, AfterValidator(_path)]
CorrelationPattern = Annotated[str, AfterValidator(_correlation_pattern)]


class _Part(BaseModel):
    """A part of a profile: nothing is converted, nothing unknown is accepted."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class CommandRules(_Part):
    """How a command becomes an MQTT message."""

    topic: TopicTemplate
    qos: Qos = 0
    codec: Codec = "json"
    payload: Any
    """json: a tree whose text leaves are templates. text: a template. hex: a template that gives hex digits."""
    message_expiry: bool = True
    """Whether the message carries the rest of the start window as its MQTT 5 expiry."""

    @model_validator(mode="after")
    def _payload_fits_codec(self) -> Self:
        if self.codec != "json" and not isinstance(self.payload, str):
            raise ValueError(f"payload of codec {self.codec} is one text")
        _check_tree(self.payload)
        return self


def _check_tree(tree: Any) -> None:
    if isinstance(tree, str):
        templates.check(tree, templates.VARIABLES)
    elif isinstance(tree, dict):
        for key, member in tree.items():
            if not isinstance(key, str):
                raise ValueError(f"payload key {key!r} is not a text; put it in quotes")  # noqa: TRY004 - pydantic
            _check_tree(member)
    elif isinstance(tree, list):
        for member in tree:
            _check_tree(member)
    elif not isinstance(tree, int | float | None):
        raise ValueError(f"payload member {tree!r} has no place in JSON")  # noqa: TRY004 - pydantic


class DeviceName(_Part):
    """Where an answer names its device. With both places given they must agree."""

    topic_segment: int | None = Field(None, ge=0)
    """Position in the topic, counted from 0."""
    payload_path: PayloadPath | None = None

    @model_validator(mode="after")
    def _has_a_place(self) -> Self:
        if self.topic_segment is None and self.payload_path is None:
            raise ValueError("name topic_segment, payload_path or both")
        return self


class Correlation(_Part):
    """Where an answer names the attempt it answers."""

    source: Literal["payload", "topic", "correlation_data", "none"]
    """`none`: the device echoes nothing; its answer is taken for the only command in flight in its lane."""
    path: PayloadPath | None = None
    topic_segment: int | None = Field(None, ge=0)
    pattern: CorrelationPattern | None = None

    @model_validator(mode="after")
    def _fits_source(self) -> Self:
        wanted = {
            "payload": {"path", "pattern"},
            "topic": {"topic_segment", "pattern"},
            "correlation_data": {"pattern"},
            "none": set[str](),
        }[self.source]
        given = {name for name in ("path", "topic_segment", "pattern") if getattr(self, name) is not None}
        if given != wanted:
            raise ValueError(f"source {self.source} takes {', '.join(sorted(wanted)) or 'nothing else'}")
        return self


class Word(_Part):
    """What one of the device's words means."""

    status: Literal["SUCCESS", "FAILED", "IN_PROGRESS", "DUPLICATE"]
    code: str | None = Field(None, pattern=r"^[A-Z][A-Z0-9_]{0,63}$")
    retryable: bool = False

    @model_validator(mode="after")
    def _only_failures_have_codes(self) -> Self:
        if (self.code is not None) != (self.status == "FAILED"):
            raise ValueError("FAILED has a code, other statuses have none")
        if self.retryable and self.status != "FAILED":
            raise ValueError("only FAILED can be retryable")
        return self


class OutcomeRules(_Part):
    """How the device's words are read."""

    path: PayloadPath | None = None
    """Where the word stands; without it the whole payload is the word."""
    words: dict[str, Word] = Field(min_length=1)


class AckRules(_Part):
    """How an answer is found and read."""

    topic: TopicFilter
    qos: Qos = 1
    codec: Codec = "json"
    device_sn: DeviceName
    correlation: Correlation
    outcome: OutcomeRules
    value_path: PayloadPath | None = None
    """Where the device reports the point's value."""
    message_path: PayloadPath | None = None
    """Where the device says why, for people."""
    timeout_s: float = Field(gt=0, le=86_400)
    """Seconds after the hand-over within which the answer is due."""

    @model_validator(mode="after")
    def _paths_need_json(self) -> Self:
        paths = (
            self.device_sn.payload_path,
            self.correlation.path,
            self.outcome.path,
            self.value_path,
            self.message_path,
        )
        if self.codec != "json" and any(paths):
            raise ValueError(f"paths need codec json; {self.codec} has one value, the whole payload")
        return self


class PresenceRules(_Part):
    """How a device says that it is there (last will or heartbeat). Read by nothing yet."""

    topic: TopicFilter
    device_sn: DeviceName
    path: PayloadPath | None = None
    online: list[str]
    offline: list[str]
    timeout_s: float | None = Field(None, gt=0)


class CommandGiven(_Part):
    """The command of an example."""

    sn: str
    point: str
    op: Literal["read", "write"]
    value: str | None = None
    commandId: str  # noqa: N815 - the wire's name
    attempt: int = 1
    tenant: int = 1
    model: str | None = None
    validUntil: datetime  # noqa: N815
    validFor: float  # noqa: N815 - seconds left of the start window


class CommandExpected(_Part):
    """The MQTT message of an example; `payload` as the tree or text it decodes to."""

    topic: str
    qos: Qos
    payload: Any
    expiry: int | None = None


class CommandExample(_Part):
    """A command and the MQTT message it becomes."""

    given: CommandGiven
    expect: CommandExpected


class AnswerExpected(_Part):
    """What an answer is read as."""

    status: str
    deviceSn: str  # noqa: N815
    commandId: str | None = None  # noqa: N815
    attempt: int | None = None
    value: str | None = None
    code: str | None = None
    message: str | None = None
    retryable: bool = False


class AnswerExample(_Part):
    """An answer as it comes (`payload`: a tree, or the text as it is) and what it is read as, or why it isn't."""

    topic: str
    payload: Any
    correlation_data: str | None = None
    expect: AnswerExpected | None = None
    unreadable: str | None = None
    """Words that the reason holds."""

    @model_validator(mode="after")
    def _expects_one_thing(self) -> Self:
        if (self.expect is None) == (self.unreadable is None):
            raise ValueError("give either expect or unreadable")
        return self


class Examples(_Part):
    """Examples are tests: each shipped profile is held to its own."""

    commands: list[CommandExample] = Field(min_length=1)
    answers: list[AnswerExample] = Field(min_length=1)


class Profile(_Part):
    """A family of devices that are commanded and answer in the same way."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,63}$")
    title: str = Field(min_length=1)
    command: CommandRules
    ack: AckRules
    presence: PresenceRules | None = None
    examples: Examples

    @model_validator(mode="after")
    def _segments_are_wildcards(self) -> Self:
        segments = self.ack.topic.split("/")
        places = [
            ("device_sn", self.ack.device_sn.topic_segment),
            ("correlation", self.ack.correlation.topic_segment),
        ]
        for owner, place in places:
            covered = place is None or "#" in segments[: place + 1] or segments[place : place + 1] == ["+"]
            if not covered:
                raise ValueError(f"ack.{owner}.topic_segment {place} is no wildcard of {self.ack.topic!r}")
        return self
