"""Replaying and discarding dead letters: many in one transaction, each with its own outcome, each once."""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus

from sqlalchemy import RowMapping
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from laneway_center.store.actions import Action, Operator, record_actions
from laneway_center.store.database import transact
from laneway_center.store.locked_rows import Subject
from laneway_center.store.operators import Again, SendingAgain, SentAgain, close_ends, lock_commands
from laneway_center.store.statements import SQL
from laneway_shared.problems import ProblemError


@dataclass(frozen=True, kw_only=True)
class Handled:
    """What became of one dead letter that somebody wanted to replay or discard."""

    id: int
    command_id: str | None = None
    problem: ProblemError | None = None
    again: SentAgain | None = None  # replayed, or would be


async def replay(
    engine: AsyncEngine, tenant_id: int, ids: Sequence[int], operator: Operator, terms: Again
) -> list[Handled]:
    """Send the commands of these dead letters again; one outcome per id, in order.

    Sent twice, or by two operators at once: each is replayed once, the other one hears it.

    Raises:
        DatabaseAwayError: PostgreSQL can't be reached; nothing was written.
    """

    async def work() -> list[Handled]:
        async with engine.connect() as connection, connection.begin() as transaction:
            handled = await _replay(connection, tenant_id, ids, operator, terms)
            if terms.dry_run or not any(each.again for each in handled):
                await transaction.rollback()  # what was brought back from the history stays there
            return handled

    return await transact(work)


async def _replay(
    connection: AsyncConnection, tenant_id: int, ids: Sequence[int], operator: Operator, terms: Again
) -> list[Handled]:
    # lanes, commands, then dead ends: so they are read twice, first to know whose lanes
    first = await connection.execute(SQL["dead_ends"], {"tenant_id": tenant_id, "ids": list(ids)})
    subjects = [_subject(row) for row in first.mappings() if row["command_pk"] is not None]
    rows = await lock_commands(connection, subjects, terms.grace)
    ends = await _lock_ends(connection, tenant_id, ids)
    again = SendingAgain(connection, rows, operator, terms)
    found = {pk: rows.find(_subject(end)) for pk, end in ends.items() if end["command_pk"] is not None}
    await again.look([command for command in found.values() if command is not None])
    handled: list[Handled] = []
    taken: dict[int, int] = {}  # row id of the command by dead end
    for end_id in ids:
        end = ends.get(end_id)
        try:
            _check_open(end_id, end, taken, "replayed")
            command = found.get(end_id)
            if end is None or end["command_pk"] is None:
                detail = f"dead letter {end_id} is a message without a command; it can only be discarded"
                raise _conflict("MESSAGE_NOT_REPLAYABLE", detail)
            if command is None or command.row["id"] != end["command_pk"]:  # its id may have been used again since
                raise _conflict("NOT_REPLAYABLE", "its command is not kept any more; submit a new one")
            again.add(command)
            taken[end_id] = command.row["id"]
            handled.append(Handled(id=end_id, command_id=end["command_uuid"]))
        except ProblemError as problem:
            handled.append(Handled(id=end_id, command_id=_command_id(end), problem=problem))
    await again.write()
    results = await again.results()
    return [
        each if each.problem else Handled(id=each.id, command_id=each.command_id, again=results[taken[each.id]])
        for each in handled
    ]


async def discard(
    engine: AsyncEngine, tenant_id: int, ids: Sequence[int], operator: Operator, *, dry_run: bool = False
) -> list[Handled]:
    """Set these dead letters aside for good; their commands stay as they ended. One outcome per id, in order.

    Raises:
        DatabaseAwayError: PostgreSQL can't be reached; nothing was written.
    """

    async def work() -> list[Handled]:
        async with engine.begin() as connection:
            ends = await _lock_ends(connection, tenant_id, ids)
            handled: list[Handled] = []
            taken: set[int] = set()
            for end_id in ids:
                end = ends.get(end_id)
                command_id = _command_id(end)
                try:
                    _check_open(end_id, end, taken, "discarded")
                    taken.add(end_id)
                    handled.append(Handled(id=end_id, command_id=command_id))
                except ProblemError as problem:
                    handled.append(Handled(id=end_id, command_id=command_id, problem=problem))
            if not dry_run:
                await close_ends(connection, sorted(taken), "discarded", operator)
                acts = [_discarded(ends[end_id]) for end_id in sorted(taken)]
                await record_actions(connection, operator, acts)
            return handled

    return await transact(work)


async def _lock_ends(connection: AsyncConnection, tenant_id: int, ids: Sequence[int]) -> Mapping[int, RowMapping]:
    locked = await connection.execute(SQL["lock_dead_ends"], {"tenant_id": tenant_id, "ids": list(ids)})
    return {row["id"]: row for row in locked.mappings()}


def _subject(end: RowMapping) -> Subject:
    return Subject(tenant_id=end["tenant_id"], command_id=end["command_uuid"])


def _command_id(end: RowMapping | None) -> str | None:
    return None if end is None else end["command_uuid"]


def _check_open(end_id: int, end: RowMapping | None, taken: Container[int], now: str) -> None:
    if end is None:
        raise ProblemError(HTTPStatus.NOT_FOUND, "LETTER_UNKNOWN", f"no dead letter {end_id} is known")
    state, by = end["state"], "here, by the same request"
    if state != "open":
        by = f"by {end['handled_by']} at {end['handled_at'].isoformat(timespec='seconds')}"
    elif end_id in taken:  # it stands there twice
        state = now
    if state == "replayed":
        raise _conflict("ALREADY_REPLAYED", f"dead letter {end_id} was replayed {by}")
    if state == "discarded":
        raise _conflict("ALREADY_DISCARDED", f"dead letter {end_id} was discarded {by}")


def _discarded(end: RowMapping) -> Action:
    facts = {"commandId": end["command_uuid"], "endedAs": end["ended_as"], "reason": end["reason"]}
    return Action(
        action="letter.discard",
        subject=str(end["id"]),
        tenant_id=end["tenant_id"],
        before=facts | {"state": "open"},
        after=facts | {"state": "discarded"},
    )


def _conflict(code: str, detail: str) -> ProblemError:
    return ProblemError(HTTPStatus.CONFLICT, code, detail)
