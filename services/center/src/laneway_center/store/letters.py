"""Dead letters and unreadable messages, kept with their raw content."""

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine

from laneway_center.store.database import to_json, transact
from laneway_center.store.statements import SQL


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

    @property
    def hash(self) -> str:
        """The same for each delivery of the same letter (hex)."""
        headers = repr(sorted(self.headers.items(), key=str))
        parts = (self.message_id or "", self.queue, self.reason, self.explanation or "", headers)
        return hashlib.sha256("\0".join(parts).encode(errors="replace") + b"\0" + self.body).hexdigest()


async def store_letters(engine: AsyncEngine, letters: Sequence[Letter]) -> None:
    """Keep letters, each once however often it is delivered.

    Raises:
        DatabaseAwayError: PostgreSQL can't be reached.
    """
    rows: list[dict[str, Any]] = [
        {
            "letter_hash": letter.hash,
            "tenant_id": letter.tenant_id,
            "command_id": letter.command_id,
            "attempt": letter.attempt,
            "queue": _storable(letter.queue)[:255],
            "routing_key": _storable(letter.routing_key)[:255],
            "reason": _storable(letter.reason)[:64],
            "explanation": None if letter.explanation is None else _storable(letter.explanation)[:1024],
            "body": base64.b64encode(letter.body).decode(),
            "headers": plain(letter.headers),
        }
        for letter in letters
    ]

    async def work() -> None:
        async with engine.begin() as connection:
            await connection.execute(SQL["store_letters"], {"rows": to_json(rows)})

    await transact(work)


def _storable(text: str) -> str:
    """The text without what PostgreSQL refuses (NUL, lone surrogates)."""
    return text.encode(errors="replace").decode().replace("\x00", "�")


def plain(value: Any) -> Any:
    """AMQP header values as JSON: bytes as text, times as ISO text, the rest by its nature."""
    if isinstance(value, dict):
        return {_storable(str(key)): plain(member) for key, member in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(member) for member in value]
    if isinstance(value, bytes):
        return _storable(value.decode(errors="replace"))
    if isinstance(value, bool | float) or value is None:
        return value
    if isinstance(value, int):
        return value if -(2**63) <= value < 2**63 else str(value)
    return _storable(value.isoformat() if hasattr(value, "isoformat") else str(value))
