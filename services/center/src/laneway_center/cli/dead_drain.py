"""`laneway dead drain`: dead letters from RabbitMQ into a file while no center runs, and back."""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

from rich.progress import Progress

from laneway_center.cli.endings import INTERRUPTED, OK
from laneway_center.cli.letter_file import Given, LetterFile, fingerprint
from laneway_center.cli.output import Output, note, progress, say, show
from laneway_shared.broker.letters import RawLetter, give_letters_back, take_letters
from laneway_shared.process import stop_event
from laneway_shared.telemetry import configure_logs
from laneway_shared.topology import Topology


def to_file(path: Path, topology: Topology, amqp_url: str, output: Output, *, force: bool) -> int:
    """Append what is in the dead queue to the file; returns the exit code."""
    configure_logs("CRITICAL")
    new = 0
    with LetterFile(path).opened(to_append=True) as file, progress() as bars:
        stopped, new = asyncio.run(_take(file, topology, amqp_url, bars, force=force))
        count = file.count
    if output is Output.JSON:
        show({"file": str(path), "drained": new, "letters": count, "finished": not stopped})
    else:
        say(f"{_letters(new)} drained into {path}, {count:,} in it now.")
    if stopped:
        note("laneway: INTERRUPTED: the queue isn't empty; the same again goes on")
        return INTERRUPTED
    return OK


async def _take(file: LetterFile, topology: Topology, url: str, bars: Progress, *, force: bool) -> tuple[bool, int]:
    stop = stop_event()
    bar = bars.add_task("draining", total=None)
    new = 0

    def keep(letters: Sequence[RawLetter]) -> None:
        nonlocal new
        new += file.append(letters, topology.dead_queue)
        bars.advance(bar, len(letters))

    def waiting(count: int) -> None:
        bars.update(bar, total=count)

    await take_letters(url, topology.dead_queue, keep, stop, waiting=waiting, force=force)
    return stop.is_set(), new


def from_file(path: Path, topology: Topology, amqp_url: str, output: Output) -> int:
    """Give the file's letters back to the dead exchange, each once; returns the exit code."""
    configure_logs("CRITICAL")
    with LetterFile(path).opened(to_append=False) as file, progress() as bars:
        given = Given(file)
        before = given.count
        stopped = asyncio.run(_give(file, given, topology, amqp_url, bars)) if before < file.count else False
        now, left = given.count - before, file.count - given.count
    if output is Output.JSON:
        show({"file": str(path), "givenBack": now, "before": before, "left": left})
    elif not now and not left:
        say(f"Nothing is left to give back: {_letters(before)} of {path} went before.")
    else:
        also = f", {before:,} before" if before else ""
        say(f"{_letters(now)} given back to {topology.dead_exchange}{also}; {left:,} left.")
    if stopped and left:
        note("laneway: INTERRUPTED: the same again goes on where it stopped")
        return INTERRUPTED
    return OK


async def _give(file: LetterFile, given: Given, topology: Topology, url: str, bars: Progress) -> bool:
    stop = stop_event()
    bar = bars.add_task("giving back", total=file.count, completed=given.count)
    waiting = ((n, _named(letter)) for n, letter in file.letters() if n not in given)
    async with aclosing(give_letters_back(url, topology.dead_exchange, waiting, stop)) as confirmed:
        async for numbers in confirmed:
            given.add(numbers)
            bars.advance(bar, len(numbers))
    return stop.is_set()


def _named(letter: RawLetter) -> RawLetter:
    """A letter without an id gets one that is always the same: given back twice, the center stores it once."""
    return letter if letter.message_id else replace(letter, message_id=fingerprint(letter)[:32])


def _letters(count: int) -> str:
    return "1 letter" if count == 1 else f"{count:,} letters"
