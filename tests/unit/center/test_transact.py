"""What a transaction is tried again for, and how often."""

import pytest
from sqlalchemy.exc import DBAPIError

from laneway_center.store.database import DatabaseAwayError, DatabaseRefusedError, RowsMovedError, transact

TRIES = 8


class Said(Exception):  # noqa: N818 - it stands in for a driver's error
    def __init__(self, sqlstate: str) -> None:
        super().__init__(sqlstate)
        self.sqlstate = sqlstate


def said(sqlstate: str) -> DBAPIError:
    return DBAPIError("UPDATE", None, Said(sqlstate))


class Work:
    """Fails so often, then returns."""

    def __init__(self, error: Exception, times: int) -> None:
        self.error, self.times, self.tries = error, times, 0

    async def __call__(self) -> str:
        self.tries += 1
        if self.tries <= self.times:
            raise self.error
        return "done"


@pytest.mark.parametrize("sqlstate", ["40P01", "40001"])
@pytest.mark.parametrize("times", [0, 1, TRIES - 1])
async def test_a_collision_is_tried_again(sqlstate: str, times: int) -> None:
    work = Work(said(sqlstate), times)
    assert await transact(work) == "done"
    assert work.tries == times + 1


async def test_collisions_without_end_are_a_database_that_is_away() -> None:
    work = Work(said("40P01"), 1000)
    with pytest.raises(DatabaseAwayError):
        await transact(work)
    assert work.tries == TRIES


async def test_rows_that_move_are_followed() -> None:
    work = Work(RowsMovedError(), 20)
    assert await transact(work) == "done"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (said("23505"), DBAPIError),
        (said("57P01"), DatabaseAwayError),
        (said("28P01"), DatabaseRefusedError),
        (ConnectionRefusedError(), DatabaseAwayError),
        (ValueError(), ValueError),
    ],
    ids=["refused row", "shut down", "refused password", "unreachable", "bug"],
)
async def test_anything_else_is_not_tried_again(error: Exception, kind: type[Exception]) -> None:
    work = Work(error, 1)
    with pytest.raises(kind):
        await transact(work)
    assert work.tries == 1


async def test_what_comes_after_a_collision_is_said_as_it_is() -> None:
    errors = [said("40P01"), said("40P01"), said("57P01")]

    async def work() -> None:
        raise errors.pop(0)

    with pytest.raises(DatabaseAwayError):
        await transact(work)
    assert errors == []
