"""The short form of `make chaos`, in every test run, with a seed of its own each time (printed when it fails)."""

import os
import random
from pathlib import Path

from chaos.plan import make_plan
from chaos.run import Terms, printed, run
from laneway_local.stack import Stack


def test_a_seed_makes_the_same_plan_again() -> None:
    assert make_plan(7, 20, 60) == make_plan(7, 20, 60)
    assert make_plan(7, 20, 60) != make_plan(8, 20, 60)
    assert len({fault.kind for fault in make_plan(1, 200, 60)}) == 5


async def test_two_minutes_of_faults_lose_double_and_reorder_nothing(
    infra: Stack, database_url: str, tmp_path: Path
) -> None:
    seed = int(os.environ.get("CHAOS_SEED") or random.SystemRandom().randrange(1, 1_000_000))
    terms = Terms(commands=900, lanes=30, unsafe=0.3, faults=12, seconds=45, seed=seed)
    report = await run(infra, database_url, terms, tmp_path, print)
    assert report.sound, printed(terms, report)
