"""The short form of `make chaos`, in every test run, with a seed of its own each time (printed when it fails)."""

import os
import random
from pathlib import Path
from typing import cast

from chaos.load import Load
from chaos.people import People
from chaos.plan import make_plan
from chaos.promises import broken_promises
from chaos.run import Terms, printed, run
from laneway_local.stack import Stack
from support.laneway import Laneway
from support.stories import Story, uuid_of


def test_a_seed_makes_the_same_plan_again() -> None:
    assert make_plan(7, 20, 60) == make_plan(7, 20, 60)
    assert make_plan(7, 20, 60) != make_plan(8, 20, 60)
    assert len({fault.kind for fault in make_plan(1, 200, 60)}) == 5


def test_a_promise_that_was_broken_is_found() -> None:
    story = Story().store("a", "b", "c").done("a").store("d", "e")
    nobody = cast("Laneway", None)
    load = Load(nobody, random.Random(1), [1], 0.0, accepted=[uuid_of("a"), uuid_of("x")], refused=[uuid_of("b")])
    people = People(nobody, load, random.Random(1), [], cancelled={uuid_of("c")})
    assert [said.partition(" ")[2] for said in broken_promises(story.facts(), load, people, {"device:1": 3})] == [
        "was accepted and is lost",
        "was refused and is stored",
        "was cancelled and is PENDING",
        "wait in lane device:1, which may have 3",
    ]


async def test_two_minutes_of_faults_lose_double_and_reorder_nothing(
    infra: Stack, database_url: str, tmp_path: Path
) -> None:
    seed = int(os.environ.get("CHAOS_SEED") or random.SystemRandom().randrange(1, 1_000_000))
    terms = Terms(commands=900, lanes=30, unsafe=0.3, faults=12, seconds=45, seed=seed)
    report = await run(infra, database_url, terms, tmp_path, print)
    assert report.sound, printed(terms, report)
