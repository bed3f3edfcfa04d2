"""Following one command by server-sent events, over losses of the connection."""

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import orjson

from laneway_center.cli.client import Center, CenterAwayError
from laneway_center.cli.endings import FAILED, OK
from laneway_center.cli.output import Output, clock, note, say
from laneway_shared.lifecycle import Status

QUIET_S = 30.0  # the center sends a comment every 10 s
TRIES = 5  # in a row, before anything has come: perhaps it is the wrong URL
PATIENCE_S = 90.0  # for a center that was there: a restart takes less
PAUSE_S = 0.5


@dataclass(frozen=True)
class Event:
    """One event of a stream."""

    name: str
    data: dict[str, Any]
    id: str | None = None


def events(lines: Iterable[str]) -> Iterator[Event]:
    """Server-sent events out of the lines of a stream; an unfinished one at its end is none."""
    name, said_id = "message", None
    data: list[str] = []
    for line in lines:
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not line:
            if data:
                yield Event(name, orjson.loads("\n".join(data)), said_id)
            name, data = "message", []
        elif field == "event":
            name = value
        elif field == "data":
            data.append(value)
        elif field == "id":
            said_id = value


def follow(center: Center, command_id: str, output: Output, *, reached: bool = False) -> int:
    """Print each line of the timeline as it comes; returns the exit code. `reached`: the center was there just now.

    Raises:
        CenterAwayError: the center is away for good; says how to resume.
        RefusedError: no such command.
    """
    seen: str | None = None
    loss = _Loss(command_id, reached=reached)
    while True:
        try:
            for event in _stream(center, command_id, seen):
                loss.over()
                if event.name == "line":
                    seen = event.id or seen
                    _tell(event.data, output)
                    if _enters_review(event.data) and _is_in_review(center, command_id, output):
                        return FAILED
                elif event.name == "end":
                    return _ended(event.data, output)
        except CenterAwayError as error:
            loss.again(error)
        time.sleep(PAUSE_S)


class _Loss:
    """How long the center has been away."""

    def __init__(self, command_id: str, *, reached: bool) -> None:
        self._command_id = command_id
        self.over(reached=reached)

    def over(self, *, reached: bool = True) -> None:
        """It is there."""
        self._reached = reached
        self._since: float | None = None
        self._tries = 0

    def again(self, error: CenterAwayError) -> None:
        """It is away; raises when that has been so for long enough."""
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        self._tries += 1
        if now - self._since >= PATIENCE_S if self._reached else self._tries >= TRIES:
            how = f"the command itself goes on; to follow it again: laneway command watch {self._command_id}"
            raise type(error)(f"{error.message} ({how})") from None
        if self._tries == 2 and self._reached:  # noqa: PLR2004 - the first loss is often over at once
            note(f"laneway: {error.message}; trying for {PATIENCE_S:.0f} s to follow the command again")


def _stream(center: Center, command_id: str, after: str | None) -> Iterator[Event]:
    headers = {} if after is None else {"Last-Event-ID": after}
    path = f"/commands/{quote(command_id, safe='')}/stream"
    with center.stream(path, quiet_s=QUIET_S, **headers) as answer:
        yield from events(answer.iter_lines())


def _tell(line: Mapping[str, Any], output: Output) -> None:
    if output is Output.JSON:
        say(orjson.dumps(line).decode())
        return
    change = f"-> {line['to']}" if line["to"] != line["from"] else ""
    say(f"{clock(line['at'])}  {line['kind']:<11}  {change:<18}{line['note']}".rstrip())


def _enters_review(line: Mapping[str, Any]) -> bool:
    return bool(line["to"] == Status.MANUAL_REVIEW and line["from"] != Status.MANUAL_REVIEW)


def _is_in_review(center: Center, command_id: str, output: Output) -> bool:
    """Whether it still is: the stream begins with what happened long ago."""
    now = center.get(f"/commands/{quote(command_id, safe='')}")
    if now["status"] != Status.MANUAL_REVIEW:
        return False
    if output is Output.JSON:
        say(orjson.dumps(now).decode())
    note(f"laneway: IN_REVIEW: a person has to decide: laneway review show {command_id}")
    return True


def _ended(command: Mapping[str, Any], output: Output) -> int:
    if output is Output.JSON:
        say(orjson.dumps(command).decode())
    else:
        says = " ".join(filter(None, (command["errorCode"], command["errorMessage"])))
        answer = "" if command["responseValue"] is None else f", answer {command['responseValue']}"
        say(f"{command['status']}{answer}{f': {says}' if says else ''}")
    return OK if command["status"] == Status.SUCCESS else FAILED
