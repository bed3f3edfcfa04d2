"""Reading what devices did: from a simulator over HTTP, or from files that adapters wrote."""

import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import datetime
from pathlib import Path

import httpx
import msgspec

from laneway_center.verify.facts import Execution, Journal
from laneway_shared.errors import LanewayError

PAGE = 10_000  # entries asked for at once
TIMEOUT_S = 30
EXECUTED = "executed"
Progress = Callable[[str, int], None]
"""Called with the journal's name and the number of entries read so far."""


class JournalAwayError(LanewayError):
    """A journal can't be reached."""

    code = "JOURNAL_AWAY"


class JournalUnreadableError(LanewayError):
    """A journal is not what it should be."""

    code = "JOURNAL_UNREADABLE"


class _Entry(msgspec.Struct, rename="camel"):
    """An entry of the simulator's journal or of an adapter's file, as far as it matters here."""

    at: datetime
    event: str
    sn: str | None = None
    device_sn: str | None = None
    command_id: str | None = None
    attempt: int | None = None
    seq: int = 0


class _Page(msgspec.Struct, rename="camel"):
    entries: list[_Entry]
    last_seq: int
    cut_entries: int


_read_page = msgspec.json.Decoder(_Page).decode
_read_entry = msgspec.json.Decoder(_Entry).decode


async def from_simulator(url: str, progress: Progress) -> Journal:
    """All executions a simulator still remembers.

    Raises:
        JournalAwayError: nobody answers there.
        JournalUnreadableError: who answers is no simulator.
    """
    base = url.rstrip("/")
    try:
        async with httpx.AsyncClient(base_url=base, timeout=TIMEOUT_S, trust_env=False) as client:
            executions = [_execution(base, entry.seq, entry) async for entry in _entries(client, base, progress)]
            # asked last: what is cut while we read counts too
            oldest = await _page(client, base, {"limit": 1})
    except httpx.InvalidURL as error:
        raise JournalUnreadableError(f"{url} is no URL: {error}") from error
    except httpx.HTTPError as error:
        raise JournalAwayError(f"the simulator at {base} can't be reached: {error or type(error).__name__}") from error
    return Journal(name=base, executions=tuple(executions), begins_at=_beginning(oldest))


async def _entries(client: httpx.AsyncClient, base: str, progress: Progress) -> AsyncIterator[_Entry]:
    since, count = 0, 0
    while True:
        page = await _page(client, base, {"event": EXECUTED, "since": since, "limit": PAGE})
        for entry in page.entries:
            yield entry
        count += len(page.entries)
        progress(base, count)
        if len(page.entries) < PAGE:
            return
        since = page.entries[-1].seq


async def _page(client: httpx.AsyncClient, base: str, query: dict[str, str | int]) -> _Page:
    answer = await client.get("/journal", params=query)
    if answer.status_code != httpx.codes.OK:
        raise JournalUnreadableError(f"{base}/journal answers {answer.status_code}; is it a simulator?")
    try:
        return _read_page(answer.content)
    except msgspec.DecodeError as error:
        raise JournalUnreadableError(f"{base}/journal is no journal: {error}") from error


def _beginning(oldest: _Page) -> datetime | None:
    """From when on the journal is whole: numbers start at 1, so a higher first one tells of a cut or a clearing."""
    if oldest.entries:
        return None if oldest.entries[0].seq == 1 else oldest.entries[0].at
    return None


def from_file(path: Path, progress: Progress) -> Journal:
    """All executions in a file of JSON lines. A last line without its end is still being written, and left out.

    Raises:
        JournalAwayError: the file can't be read.
        JournalUnreadableError: a line is no entry.
    """
    try:
        return Journal(name=str(path), executions=tuple(_lines(path, progress)))
    except OSError as error:
        raise JournalAwayError(f"{path} can't be read: {error.strerror}") from error


def _lines(path: Path, progress: Progress) -> Iterator[Execution]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                break
            if not line.strip():
                continue
            try:
                entry = _read_entry(line)
            except msgspec.DecodeError as error:
                raise JournalUnreadableError(f"{path}, line {number} is no journal entry: {error}") from error
            if entry.event == EXECUTED:
                yield _execution(str(path), number, entry)
            if number % PAGE == 0:
                progress(str(path), number)


def _execution(journal: str, place: int, entry: _Entry) -> Execution:
    return Execution(
        journal=journal,
        place=place,
        device=entry.sn or entry.device_sn or "",
        at=entry.at,
        command_id=_command_id(entry.command_id),
        attempt=entry.attempt,
    )


def _command_id(text: str | None) -> str | None:
    """The id as the database writes it; None for what is no UUID and so no command of Laneway's."""
    if text is None:
        return None
    try:
        return str(uuid.UUID(text))
    except ValueError:
        return None
