"""Who is woken for what."""

import asyncio

import pytest

from laneway_center.following import Followers
from laneway_center.wakeups import Wakeups

COMMAND, OTHER = "0190c3e2-7b1c-7000-8000-3f2a9d5c1e77", "0190c3e2-7b1c-7000-8000-000000000001"


def wakeups() -> Wakeups:
    return Wakeups("postgresql://unused@localhost/unused", listens=False)


async def test_driver_services_add_up_until_they_are_taken() -> None:
    some = wakeups()
    some.lanes_ready({"a"})
    some.lanes_ready({"b", "a"})
    assert await some.wait(30) == frozenset("ab")
    some.lanes_ready({"c"})
    assert some.woken() == frozenset("c")
    assert some.woken() == frozenset()


@pytest.mark.parametrize("order", [({"a"}, None), (None, {"a"})], ids=["last", "first"])
async def test_where_nobody_knows_whose_lanes_all_are_looked_at(order: tuple[set[str] | None, ...]) -> None:
    some = wakeups()
    for drivers in order:
        some.lanes_ready(drivers)
    assert await some.wait(30) is None
    some.lanes_ready({"a"})
    assert await some.wait(30) == frozenset("a"), "taken"


async def test_when_the_time_is_over_all_are_looked_at() -> None:
    assert await wakeups().wait(0.001) is None


async def test_who_waits_for_an_end_is_not_woken_before() -> None:
    followers = Followers(arrived=asyncio.Event())
    with followers.follow(COMMAND, 1, ends_only=True) as end, followers.follow(COMMAND, 1) as line:
        followers.tell([COMMAND[-12:]], going_on=True)
        assert (end.news.is_set(), line.news.is_set()) == (False, True)
        followers.tell([OTHER[-12:]], going_on=False)
        assert not end.news.is_set()
        followers.tell([COMMAND[-12:]], going_on=False)
        assert end.news.is_set()


async def test_a_look_after_lines_leaves_out_whose_command_is_not_known_yet() -> None:
    followers = Followers(arrived=asyncio.Event())
    with followers.follow(COMMAND, ends_only=True) as one:
        assert followers.commands() == []
        followers.looked({1: 5})
        assert not one.news.is_set()
        one.command_pk = 1
        assert followers.commands() == [1]
        followers.looked({1: 5})
        assert one.news.is_set()
