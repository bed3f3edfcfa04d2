"""Dead letters in a file, one JSON object a line, and how far they were given back.

The file only grows, so a line's number names a letter for good. What is in it was on disk before it left RabbitMQ.
"""

import base64
import fcntl
import hashlib
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import IO, Any

import orjson

from laneway_shared.broker.letters import KEPT, RawLetter
from laneway_shared.errors import LanewayError

SCHEMA_VERSION = 1


class LettersUnreadableError(LanewayError):
    """The file holds something else than letters."""

    code = "LETTERS_UNREADABLE"


class LettersInUseError(LanewayError):
    """Another process writes or reads the file."""

    code = "LETTERS_IN_USE"


class FileFailedError(LanewayError):
    """The file can't be opened, or not be written to the disk."""

    code = "FILE"


class LetterFile:
    """The file, held by this process alone while `opened` runs. `count`: letters in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.count = 0
        self._file: IO[bytes]
        self._known: Counter[str] = Counter()

    @contextmanager
    def opened(self, *, to_append: bool) -> Iterator["LetterFile"]:
        """Read it whole. A last line without an end was never acked: it is cut off before anything is appended.

        Raises:
            LettersUnreadableError: names the line that is no letter.
            LettersInUseError: another process has it.
            FileFailedError: it can't be opened.
        """
        mode = os.O_RDWR | (os.O_CREAT if to_append else 0)
        with _told(self.path):
            descriptor = os.open(self.path, mode, 0o600)  # for the owner alone: bodies hold values
        with os.fdopen(descriptor, "r+b") as self._file:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise LettersInUseError(f"another process works with {self.path}") from None
            end = 0
            for _, line, letter in self._lines():
                self.count += 1
                self._known[fingerprint(letter)] += 1
                end += len(line)
            if to_append:
                self._file.truncate(end)
                self._file.seek(end)
            yield self

    def _lines(self) -> Iterator[tuple[int, bytes, RawLetter]]:
        self._file.seek(0)
        for n, line in enumerate(self._file, 1):
            if not line.endswith(b"\n"):
                return
            try:
                yield n, line, _letter(orjson.loads(line))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise LettersUnreadableError(f"{self.path}, line {n} is no letter ({error})") from None

    def letters(self) -> Iterator[tuple[int, RawLetter]]:
        """All of them with their numbers, from 1."""
        for n, _, letter in self._lines():
            yield n, letter

    def append(self, letters: Sequence[RawLetter], queue: str) -> int:
        """Write letters down; they are on disk when this returns. Returns how many are new.

        One that RabbitMQ delivers again and that is there already came here before a crash, and isn't written twice.
        """
        new = 0
        with _told(self.path):
            for letter in letters:
                mark = fingerprint(letter)
                if letter.redelivered and self._known[mark] > 0:
                    self._known[mark] -= 1
                    continue
                self._file.write(_line(letter, queue))
                new += 1
            self._file.flush()
            os.fsync(self._file.fileno())
        self.count += new
        return new


class Given:
    """Which letters of a file were given back: all up to `through`, and some after it. Kept beside the file."""

    def __init__(self, letters: LetterFile) -> None:
        self._path = letters.path.with_name(letters.path.name + ".given")
        first = next((letter for _, letter in letters.letters()), None)
        self._file = None if first is None else fingerprint(first)
        self.through = 0
        self._after: set[int] = set()
        if self._path.exists():
            try:
                said = orjson.loads(self._path.read_bytes())
                file, self.through, self._after = said["file"], int(said["through"]), {int(n) for n in said["after"]}
            except (ValueError, KeyError, TypeError):
                raise LettersUnreadableError(f"{self._path} can't be read") from None
            if file != self._file:
                raise LettersUnreadableError(f"{self._path} belongs to another file; remove it if it is old")

    def __contains__(self, n: int) -> bool:
        return n <= self.through or n in self._after

    @property
    def count(self) -> int:
        """How many."""
        return self.through + len(self._after)

    def add(self, numbers: Sequence[int]) -> None:
        """Note them; it is on disk when this returns."""
        self._after.update(numbers)
        while self.through + 1 in self._after:
            self.through += 1
            self._after.remove(self.through)
        said = {"file": self._file, "through": self.through, "after": sorted(self._after)}
        beside = self._path.with_name(self._path.name + ".new")
        with _told(self._path):
            with beside.open("wb") as file:
                file.write(orjson.dumps(said))
                file.flush()
                os.fsync(file.fileno())
            beside.replace(self._path)


@contextmanager
def _told(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise FileFailedError(f"{path}: {error.strerror or error}") from None


def fingerprint(letter: RawLetter) -> str:
    """The same for each delivery of the same letter (hex)."""
    parts = [letter.message_id, letter.routing_key, _plain(dict(letter.headers)), _plain(dict(letter.properties))]
    said = orjson.dumps([*parts, letter.timestamp], option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(said + b"\0" + letter.body).hexdigest()


def _line(letter: RawLetter, queue: str) -> bytes:
    said = {
        "schemaVersion": SCHEMA_VERSION,
        "drainedAt": datetime.now(UTC),
        "queue": queue,
        "exchange": letter.exchange,
        "routingKey": letter.routing_key,
        "redelivered": letter.redelivered,
        "messageId": letter.message_id,
        "timestamp": letter.timestamp,
        "properties": _plain(dict(letter.properties)),
        "headers": _plain(dict(letter.headers)),
        "body": base64.b64encode(letter.body).decode(),
    }
    return orjson.dumps(said, option=orjson.OPT_APPEND_NEWLINE)


def _letter(said: dict[str, Any]) -> RawLetter:
    if said["schemaVersion"] != SCHEMA_VERSION:
        raise ValueError(f"schemaVersion {said['schemaVersion']}")
    properties = _typed(said["properties"])
    return RawLetter(
        body=base64.b64decode(said["body"], validate=True),
        routing_key=said["routingKey"],
        exchange=said["exchange"],
        message_id=said["messageId"],
        timestamp=None if said["timestamp"] is None else datetime.fromisoformat(said["timestamp"]),
        headers=_typed(said["headers"]),
        properties={name: properties[name] for name in KEPT if name in properties},
    )


def _plain(value: Any) -> Any:
    """A header's value as JSON that `_typed` reads back as it was."""
    match value:
        case datetime():
            return {"$time": value.isoformat()}
        case bytes() | bytearray():
            return {"$bytes": base64.b64encode(value).decode()}
        case Decimal():
            return {"$decimal": str(value)}
        case dict():
            inner = {str(key): _plain(member) for key, member in value.items()}
            return {"$object": inner} if any(key.startswith("$") for key in inner) else inner
        case list() | tuple():
            return [_plain(member) for member in value]
        case _:
            return value


def _typed(value: Any) -> Any:  # noqa: PLR0911 - one line per kind of value
    match value:
        case {"$time": str(text)}:
            return datetime.fromisoformat(text)
        case {"$bytes": str(text)}:
            return bytearray(base64.b64decode(text))  # what AMQP's libraries take as bytes in a header
        case {"$decimal": str(text)}:
            return Decimal(text)
        case {"$object": dict(inner)}:
            return {key: _typed(member) for key, member in inner.items()}
        case dict():
            return {key: _typed(member) for key, member in value.items()}
        case list():
            return [_typed(member) for member in value]
        case _:
            return value
