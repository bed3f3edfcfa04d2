"""`laneway db` on a real PostgreSQL."""

import json
from collections.abc import Callable

from laneway_local.ports import free_port
from laneway_local.stack import DATABASE_URL
from support.command_line import laneway


async def test_the_schema_is_brought_up_once(new_database: Callable[[], str]) -> None:
    names = {DATABASE_URL: new_database()}
    empty = await laneway("db", "current", **names)
    assert (empty.code, empty.errors) == (1, "")
    assert empty.out.startswith("The schema is empty; this release needs ")
    upgraded = await laneway("db", "upgrade", **names)
    assert (upgraded.code, upgraded.errors) == (0, "")
    assert upgraded.out.endswith("it was empty.\n")
    again = await laneway("db", "upgrade", "--output", "json", **names)
    said = json.loads(again.out)
    assert said["before"] == said["now"]
    current = await laneway("db", "current", "--output", "json", **names)
    assert current.code == 0
    assert json.loads(current.out) == {"current": said["now"], "release": said["now"], "upToDate": True}


async def test_a_database_that_is_away_or_lets_nobody_in_is_one_line(new_database: Callable[[], str]) -> None:
    for url, code in (
        (f"postgresql://127.0.0.1:{free_port()}/laneway", "DATABASE_AWAY"),
        (f"{new_database()}_missing", "DATABASE_REFUSED"),
    ):
        for command in ("current", "upgrade"):
            ended = await laneway("db", command, "--database-url", url)
            assert (ended.code, ended.out) == (3, "")
            assert ended.reason.startswith(f"laneway: {code}: ")
    ended = await laneway("db", "upgrade", "--database-url", "mysql://x")
    assert ended.code == 2
    assert "not of postgresql" in ended.reason
