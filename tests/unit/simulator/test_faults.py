from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laneway_simulator.faults import Behaviour, Course, Decision, FaultPlan

SHARES = st.lists(st.floats(0, 0.25), min_size=4, max_size=4)


@st.composite
def plans(draw: st.DrawFn) -> FaultPlan:
    refuse, busy, before, after = draw(SHARES)
    shortest = draw(st.floats(0, 1_000))
    return FaultPlan(
        seed=draw(st.integers()),
        latency_min_ms=shortest,
        latency_max_ms=shortest + draw(st.floats(0, 1_000)),
        refuse=refuse,
        busy=busy,
        silent_before=before,
        silent_after=after,
        duplicate_ack=draw(st.floats(0, 1)),
        late_ack=draw(st.floats(0, 1)),
    )


@given(plans(), st.lists(st.tuples(st.text(), st.text()), max_size=20), st.randoms(use_true_random=False))
def test_a_decision_depends_on_seed_lock_and_message_never_on_the_order_of_arrival(
    plan: FaultPlan, messages: list[tuple[str, str]], chance: Random
) -> None:
    first = {message: plan.decide(*message) for message in messages}
    shuffled = messages + messages
    chance.shuffle(shuffled)

    assert {message: plan.decide(*message) for message in shuffled} == first


@given(plans(), st.text(), st.text())
def test_latency_stays_within_its_bounds(plan: FaultPlan, sn: str, msg_id: str) -> None:
    latency = plan.decide(sn, msg_id).latency_ms
    slack = 1e-9 * plan.latency_max_ms  # the last bit of a floating-point sum
    assert plan.latency_min_ms - slack <= latency <= plan.latency_max_ms + slack


@given(plans())
def test_a_share_of_nothing_never_happens(plan: FaultPlan) -> None:
    healthy = FaultPlan(seed=plan.seed)
    assert {healthy.decide("A100", f"m.{n}") for n in range(50)} == {Decision()}


def test_the_decisions_of_a_seed_are_the_same_in_every_release() -> None:
    plan = FaultPlan(seed=7, latency_max_ms=100, refuse=0.2, busy=0.2, silent_before=0.2, silent_after=0.2)

    courses = [plan.decide("A100", f"command.{n}").course for n in range(8)]

    assert courses == [
        Course.SILENT_BEFORE,
        Course.REFUSE,
        Course.REFUSE,
        Course.REFUSE,
        Course.BUSY,
        Course.SILENT_AFTER,
        Course.BUSY,
        Course.SILENT_BEFORE,
    ]


def test_shares_come_out_as_asked() -> None:
    plan = FaultPlan(
        seed=3, refuse=0.1, busy=0.2, silent_before=0.3, silent_after=0.05, duplicate_ack=0.5, late_ack=0.25
    )
    made = [plan.decide(f"L{n % 100}", f"c.{n}") for n in range(20_000)]

    courses = Counter(decision.course for decision in made)
    for course, share in (
        (Course.REFUSE, 0.1),
        (Course.BUSY, 0.2),
        (Course.SILENT_BEFORE, 0.3),
        (Course.SILENT_AFTER, 0.05),
    ):
        assert courses[course] / len(made) == pytest.approx(share, abs=0.015)
    assert sum(decision.duplicate_ack for decision in made) / len(made) == pytest.approx(0.5, abs=0.015)
    assert sum(decision.late_ack_ms > 0 for decision in made) / len(made) == pytest.approx(0.25, abs=0.015)


def test_another_seed_makes_other_faults() -> None:
    def courses(seed: int) -> list[Course]:
        return [FaultPlan(seed=seed, refuse=0.5).decide("A100", f"c.{n}").course for n in range(64)]

    assert courses(1) != courses(2)


def test_shares_above_one_and_crossed_latencies_are_refused() -> None:
    with pytest.raises(ValueError, match="more than 1"):
        FaultPlan(refuse=0.6, busy=0.6)
    with pytest.raises(ValueError, match="latency"):
        FaultPlan(latency_min_ms=2, latency_max_ms=1)


def test_a_behaviour_replaces_the_plan_but_for_a_latency_it_leaves_open() -> None:
    planned = Decision(course=Course.BUSY, latency_ms=40, duplicate_ack=True, late_ack_ms=9)

    assert Behaviour().decide(planned) == Decision(latency_ms=40)
    assert Behaviour(course=Course.REFUSE, latency_ms=0).decide(planned) == Decision(course=Course.REFUSE)
