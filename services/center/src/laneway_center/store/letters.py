"""Dead letters and unreadable messages, kept with their raw content."""

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import structlog
from sqlalchemy.ext.asyncio import AsyncEngine

from laneway_center.store.database import is_refused_value, to_json, transact
from laneway_center.store.statements import SQL

log = structlog.get_logger(__name__)

PART_BYTES = 4 * 1024 * 1024  # bodies stored in one statement
BODY_BYTES = 16 * 1024 * 1024  # what is kept of one body
HEADER_DEPTH = 6
NOBODY = 1
"""The tenant that sees messages which name none."""


@dataclass(frozen=True, kw_only=True)
class Letter:
    """A message nobody could deliver, run or read.

    `reason` is the broker's word (expired, rejected, delivery_limit) or unreadable, unknown_command, refused_value.
    """

    body: bytes
    queue: str
    routing_key: str
    reason: str
    explanation: str | None = None
    tenant_id: int | None = None
    command_id: str | None = None
    attempt: int | None = None
    message_id: str | None = None
    headers: dict[str, Any] = field(default_factory=dict)
    listed_as: str | None = None  # the reason under which operators see it; None: it is evidence about a command
    unless_known: bool = False  # listed only if its command isn't known
    driver: str | None = None
    device_id: int | None = None

    @property
    def hash(self) -> str:
        """The same for each delivery of the same letter (hex)."""
        # RabbitMQ counts deliveries in a header of what it delivers again
        own = {name: value for name, value in self.headers.items() if name != "x-delivery-count"}
        headers = repr(sorted(own.items(), key=str))
        parts = (self.message_id or "", self.queue, self.reason, self.explanation or "", headers)
        return hashlib.sha256("\0".join(parts).encode(errors="replace") + b"\0" + self.body).hexdigest()


async def store_letters(engine: AsyncEngine, letters: Sequence[Letter]) -> None:
    """Keep letters, each once however often it is delivered. Whatever they hold, they can be kept.

    Raises:
        DatabaseAwayError: PostgreSQL can't be reached.
    """
    part: list[Letter] = []
    size = 0
    for letter in letters:
        if part and size + len(letter.body) > PART_BYTES:
            await _store_part(engine, part)
            part, size = [], 0
        part.append(letter)
        size += len(letter.body)
    if part:
        await _store_part(engine, part)


async def _store_part(engine: AsyncEngine, letters: Sequence[Letter]) -> None:
    rows = [_row(letter) for letter in letters]

    async def work() -> None:
        async with engine.begin() as connection:
            await connection.execute(SQL["store_letters"], {"rows": to_json(rows), "nobody": NOBODY})

    try:
        await transact(work)
    except Exception as error:
        if not is_refused_value(error):
            raise
        if len(letters) > 1:
            for letter in letters:
                await _store_part(engine, [letter])
            return
        bare = letters[0]
        if not bare.headers and bare.command_id is None:
            raise
        log.warning("letter.stripped", queue=bare.queue, reason=bare.reason)  # its body is what matters
        bare = replace(bare, headers={}, command_id=None, tenant_id=None, attempt=None, device_id=None)
        await _store_part(engine, [bare])


def _row(letter: Letter) -> dict[str, Any]:
    cut_off = len(letter.body) > BODY_BYTES
    explanation = f"(first {BODY_BYTES} bytes) {letter.explanation or ''}" if cut_off else letter.explanation
    return {
        "letter_hash": letter.hash,
        "tenant_id": letter.tenant_id,
        "command_id": letter.command_id,
        "attempt": letter.attempt,
        "queue": _storable(letter.queue)[:255],
        "routing_key": _storable(letter.routing_key)[:255],
        "reason": _storable(letter.reason)[:64],
        "explanation": None if explanation is None else _storable(explanation)[:1024],
        "body": base64.b64encode(letter.body[:BODY_BYTES]).decode(),
        "headers": plain(letter.headers),
        "listed_as": letter.listed_as,
        "unless_known": letter.unless_known,
        "driver": None if letter.driver is None else _storable(letter.driver)[:255],
        "device_id": letter.device_id,
    }


def _storable(text: str) -> str:
    """The text without what PostgreSQL refuses (NUL, lone surrogates)."""
    return text.encode(errors="replace").decode().replace("\x00", "�")


def plain(value: Any, depth: int = HEADER_DEPTH) -> Any:  # noqa: PLR0911 - one line per kind of value
    """AMQP header values as JSON: bytes as text, times as ISO text, the rest by its nature."""
    if isinstance(value, dict | list | tuple) and depth == 0:
        return "…"
    if isinstance(value, dict):
        return {_storable(str(key)): plain(member, depth - 1) for key, member in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(member, depth - 1) for member in value]
    if isinstance(value, bytes):
        return _storable(value.decode(errors="replace"))
    if isinstance(value, bool | float) or value is None:
        return value
    if isinstance(value, int):
        return value if -(2**63) <= value < 2**63 else str(value)
    return _storable(value.isoformat() if hasattr(value, "isoformat") else str(value))
