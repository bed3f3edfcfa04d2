"""The checker's rules on hand-made histories: a sound one passes, and each breach is found by its rule alone."""

from collections import Counter
from dataclasses import replace
from datetime import timedelta
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laneway_center.verify import rules
from laneway_center.verify.findings import Terms
from support.stories import ACK, CALL, GRACE, T0, Story, findings, the_finding, uuid_of


def eventful() -> Story:
    """Everything that is allowed, in two lanes."""
    story = Story().store("a", "b", "c").store("u", "v", lane=2, unsafe=True).store("t", lane=3, gate="transport")
    story.done("a")
    story.claim("b").move("b", "RETRY_WAIT", "NOT_SENT").claim("b").move("b", "AWAITING_ACK", "TRANSMITTED")
    story.execute("b").move("b", "AWAITING_ACK", "IN_PROGRESS").move("b", "SUCCESS")
    story.claim("u").move("u", "SENT", "STARTED").execute("u").move("u", "MANUAL_REVIEW", "DUE")
    story.claim("t").move("t", "AWAITING_ACK", "TRANSMITTED").execute("t").store("t2", lane=3).claim("t2")
    story.move("t", "TIMEOUT", "DUE").move("t", "PENDING", "REPLAYED").execute("t2").move("t2", "SUCCESS")
    story.done("t", "v").move("u", "PENDING", "REQUEUED").done("u")
    return story.move("c", "EXPIRED", "DUE").move("c", "EXPIRED", "SUCCESS").move("c", "PENDING", "REPLAYED").done("c")


# ------------------------------------------------------------------------------------------- sound


def test_a_sound_history_has_no_findings() -> None:
    assert findings(eventful().facts()) == {}


@pytest.mark.parametrize("until", eventful().moments)
def test_a_live_system_is_sound_at_any_moment(until: int) -> None:
    """The journal is read later and already knows what the snapshot doesn't."""
    assert findings(eventful().facts(until=until)) == {}


@given(st.data())
def test_any_history_that_keeps_the_rules_is_sound_at_any_moment(data: st.DataObject) -> None:
    story = Story()
    for number in range(data.draw(st.integers(1, 8))):
        story.store(f"c{number}", lane=data.draw(st.integers(1, 2)), unsafe=data.draw(st.booleans()))
    lanes = {lane: [n for n, c in story.commands.items() if c["lane_id"] == lane] for lane in (1, 2)}
    in_flight: dict[int, str] = {}
    for lane in data.draw(st.lists(st.sampled_from((1, 2)), max_size=40)):
        if lane in in_flight:
            name = in_flight[lane]
            after = data.draw(st.sampled_from(("SUCCESS", "FAILED", "RETRY_WAIT", "MANUAL_REVIEW", "TIMEOUT")))
            if after == "SUCCESS":
                story.execute(name)
            story.move(name, after, "DUE")
            del in_flight[lane]
            if after == "RETRY_WAIT":
                lanes[lane].insert(0, name)
        elif lanes[lane]:
            in_flight[lane] = lanes[lane].pop(0)
            story.claim(in_flight[lane])
    until = data.draw(st.integers(1, len(story.events)))
    assert findings(story.facts(until=until)) == {}


def test_without_a_journal_its_rules_are_not_judged() -> None:
    verdicts = rules.check(replace(eventful().facts(), journals=()), Terms())
    assert {name for name, found in verdicts.items() if found is None} == {
        rule.name for rule in rules.RULES if rule.needs_journal
    }


# ------------------------------------------------------------------------------------------- ended


@pytest.mark.parametrize("steps", range(5))
def test_a_command_past_its_bound_has_not_ended(steps: int) -> None:
    story, bound = Story().store("a"), T0 + timedelta(hours=1)
    if steps in (1, 2):
        story.claim("a")
        bound = (story.events[-2].start_by or T0) + CALL + GRACE
    if steps == 2:
        story.move("a", "AWAITING_ACK", "TRANSMITTED")
        bound = max(bound, story.now + ACK)
    if steps == 3:
        story.claim("a").move("a", "RETRY_WAIT", "NOT_SENT")
    if steps == 4:
        story.claim("a").move("a", "DEAD", "DUE").move("a", "PENDING", "REPLAYED")
    slack = timedelta(seconds=3)
    assert findings(story.facts(at=bound + slack), slack=slack) == {}
    finding = the_finding(story.facts(at=bound + slack + timedelta(milliseconds=1)), "ended", slack=slack)
    assert story.commands["a"]["command_id"] in finding.about


# ------------------------------------------------------------------------------------------- order


def test_an_execution_after_a_later_dispatched_one_is_out_of_order() -> None:
    story = Story().store("a", "b").claim("a").move("a", "TIMEOUT", "DUE").done("b").execute("a")
    finding = the_finding(story.facts(), "order")
    assert uuid_of("a") in finding.about
    assert uuid_of("b") in finding.says


def test_the_journal_decides_about_order_within_a_device_whatever_its_clock_says() -> None:
    story = Story().store("a", "b").claim("a").move("a", "SUCCESS").execute("a").claim("b").move("b", "SUCCESS")
    story.execute("b", at=T0)
    assert findings(story.facts()) == {}


def test_a_relaxed_retry_comes_after_the_others_by_its_newer_token() -> None:
    story = Story().store("a", "b", retry="relaxed").claim("a").execute("a").move("a", "RETRY_WAIT", "UNKNOWN")
    assert findings(story.done("b", "a").facts()) == {}


def test_two_devices_of_a_lane_are_held_against_each_other() -> None:
    story = Story().store("a").store("b", device_sn="SN9").claim("a").move("a", "TIMEOUT", "DUE").done("b").execute("a")
    the_finding(story.facts(), "order")


@pytest.mark.parametrize("early", [{"gate": "transport"}, {"ack_expected": False}])
def test_what_freed_its_lane_when_it_was_handed_over_may_be_overtaken(early: dict[str, Any]) -> None:
    after = "SUCCESS" if "ack_expected" in early else "AWAITING_ACK"
    story = Story().store("a", **early).store("b").claim("a").move("a", after, "TRANSMITTED").done("b").execute("a")
    assert findings(story.move("a", "SUCCESS").facts()) == {}
    story = Story().store("a", **early).store("b").claim("a").move("a", "TIMEOUT", "DUE").done("b").execute("a")
    the_finding(story.facts(), "order")


@pytest.mark.parametrize(("apart_s", "is_found"), [(0.9, False), (1.1, True)])
def test_between_journals_the_clocks_get_their_tolerance(apart_s: float, is_found: bool) -> None:
    story = Story().store("a", "b").claim("a").move("a", "TIMEOUT", "DUE").done("b")
    story.execute("a", journal="other", at=story.executions[-1].at + timedelta(seconds=apart_s))
    assert bool(findings(story.facts())) is is_found


@given(
    st.lists(
        st.tuples(
            st.integers(0, 6),  # command
            st.sampled_from(("SN1", "SN2")),
            st.sampled_from(("j", "k")),
            st.integers(0, 5),  # seconds
        ),
        max_size=14,
    ),
    st.sets(st.integers(0, 6)),
)
def test_order_finds_what_a_comparison_of_all_pairs_finds(
    acts: list[tuple[int, str, str, int]], freed: set[int]
) -> None:
    story = Story()
    for number in range(7):
        story.store(f"c{number}", gate="transport" if number in freed else "ack").claim(f"c{number}")
        story.move(f"c{number}", "AWAITING_ACK", "TRANSMITTED").move(f"c{number}", "FAILED")
    places = count(1)
    for number, device, journal, second in acts:
        at = T0 + timedelta(seconds=second)
        story.execute(f"c{number}", device=device, journal=journal, at=at, place=next(places))
    facts, tolerance = story.facts(), timedelta(seconds=1)
    late = Counter(
        uuid_of(f"c{number}")
        for place, (number, device, journal, second) in enumerate(acts)
        if any(
            (before < place if other_journal == journal else second - other_second > 1)
            and other > number
            and number not in freed
            for before, (other, other_device, other_journal, other_second) in enumerate(acts)
        )
    )
    found = rules.check(facts, Terms(clock_tolerance=tolerance))["order"] or []
    assert Counter(finding.about.removeprefix("command ") for finding in found) == late


# ---------------------------------------------------------------------------------- one in flight


def test_two_commands_that_hold_a_lane_at_once_are_found() -> None:
    story = Story().store("a", "b").claim("a").claim("b").execute("a").move("a", "SUCCESS").execute("b")
    finding = the_finding(story.move("b", "SUCCESS").facts(), "one_in_flight")
    assert uuid_of("b") in finding.about
    assert uuid_of("a") in finding.says


def test_a_strict_retry_keeps_its_lane() -> None:
    story = Story().store("a", "b").claim("a").move("a", "RETRY_WAIT", "NOT_SENT").done("b").claim("a").execute("a")
    the_finding(story.move("a", "SUCCESS").facts(), "one_in_flight")


# ------------------------------------------------------------------------------------- executions


def test_an_unsafe_command_done_twice_is_found() -> None:
    story = Story().store("a", unsafe=True).claim("a").execute("a").execute("a").move("a", "SUCCESS")
    the_finding(story.facts(), "unsafe_once")


def test_a_safe_command_may_be_done_twice() -> None:
    assert findings(Story().store("a").claim("a").execute("a").execute("a").move("a", "SUCCESS").facts()) == {}


def test_an_execution_past_window_and_call_is_found() -> None:
    story = Story().store("a").claim("a")
    last = (story.events[-2].start_by or T0) + CALL
    tolerance = timedelta(seconds=2)
    story.execute("a", at=last + tolerance).move("a", "SUCCESS")
    assert findings(story.facts(), clock_tolerance=tolerance) == {}
    the_finding(story.facts(), "in_window", clock_tolerance=tolerance - timedelta(milliseconds=1))


def test_an_execution_of_an_attempt_never_claimed_is_found() -> None:
    finding = the_finding(Story().store("a").done("a").execute("a", attempt=2).facts(), "in_window")
    assert "never claimed" in finding.says


def test_success_without_an_execution_is_found() -> None:
    story = Story().store("a", "b").done("a").claim("b").move("b", "SUCCESS")
    assert uuid_of("b") in the_finding(story.facts(), "success_executed").about


def test_success_is_believed_where_no_journal_could_contradict_it() -> None:
    story = Story().store("a", "b").store("elsewhere", driver="mqtt").store("cast", ack_expected=False)
    story.done("a").claim("elsewhere").move("elsewhere", "SUCCESS").claim("cast").move("cast", "SUCCESS", "TRANSMITTED")
    story.claim("b").move("b", "DEAD", "DUE").move("b", "PENDING", "REPLAYED")
    story.claim("b").move("b", "MANUAL_REVIEW", "DUE").move("b", "SUCCESS", "RESOLVED")
    assert findings(story.facts()) == {}


def test_a_journal_that_was_cut_says_nothing_about_the_time_before() -> None:
    story = Story().store("early", "done", "late").claim("early").move("early", "SUCCESS")
    begins_at = story.now + timedelta(seconds=3)
    story.store("pause", "pauses", lane=2).done("pause", "pauses", "done").claim("late").move("late", "SUCCESS")
    facts = story.facts()
    cut = replace(facts, journals=tuple(replace(journal, begins_at=begins_at) for journal in facts.journals))
    assert uuid_of("late") in the_finding(cut, "success_executed").about


def test_expired_but_executed_is_found() -> None:
    story = Story().store("a").claim("a").execute("a").move("a", "EXPIRED", "EXPIRED")
    the_finding(story.facts(), "expired_not_executed")


def test_a_stranger_is_found_unless_it_is_newer_than_the_snapshot_or_no_business_of_ours() -> None:
    story = Story().store("a").done("a").execute("b")
    the_finding(story.facts(), "stranger")
    assert findings(story.facts(at=story.now)) == {}
    elsewhere = Story().store("a").done("a").execute("b", device="SN77").execute("by hand", command_id=None)
    assert findings(elsewhere.facts()) == {}


def test_the_same_id_in_two_tenants_is_told_apart_by_the_device() -> None:
    story = Story().store("a", unsafe=True).store("b", lane=2, tenant_id=2, unsafe=True, command_id=uuid_of("a"))
    assert findings(story.done("a", "b").facts()) == {}


# -------------------------------------------------------------------------- transitions and books


@pytest.mark.parametrize(
    ("tell", "says"),
    [
        (lambda story: story.move("a", "FAILED"), "SUCCESS -> FAILED"),
        (lambda story: story.move("a", "PENDING", "REPLAYED").move("a", "EXPIRED"), "SUCCESS -> PENDING by REPLAYED"),
        (lambda story: story.move("a", "SUCCESS", "DUE", before="PENDING"), "starts from PENDING"),
    ],
)
def test_a_change_that_nobody_may_make_is_found(tell: Any, says: str) -> None:
    story = Story().store("a").claim("a").move("a", "SUCCESS")
    tell(story)
    facts = replace(story.facts(), journals=())
    assert says in the_finding(facts, "transitions").says


def test_only_a_safe_timeout_may_be_replayed() -> None:
    for unsafe in (False, True):
        story = Story().store("a", unsafe=unsafe).claim("a").move("a", "TIMEOUT", "DUE")
        story.move("a", "PENDING", "REPLAYED").move("a", "TIMEOUT", "DUE")
        assert set(findings(story.facts())) == ({"transitions"} if unsafe else set())


def test_a_row_that_its_timeline_doesnt_explain_is_found() -> None:
    facts = Story().store("a").done("a").facts()
    row = facts.commands[1]
    assert (
        "its row is FAILED"
        in the_finding(replace(facts, commands={1: replace(row, status="FAILED")}), "transitions").says
    )


def test_a_timeline_begins_with_stored() -> None:
    facts = Story().store("a").done("a").facts()
    the_finding(replace(facts, events=(replace(facts.events[0], kind="CLAIM"), *facts.events[1:])), "transitions")


@pytest.mark.parametrize("wrong", [{"depth": 2}, {"holder_id": 7}, {"state": "busy"}, {"review_holds": 1}])
def test_books_that_dont_balance_are_found(wrong: dict[str, Any]) -> None:
    facts = Story().store("a", "b").done("a").facts(at=T0)
    finding = the_finding(replace(facts, lanes={1: replace(facts.lanes[1], **wrong)}), "lane_books")
    assert next(iter(wrong)).removesuffix("_id") in finding.says


def test_a_review_that_closes_its_lane_is_in_its_books() -> None:
    story = Story().store("a", unsafe=True, review_policy="hold").claim("a").move("a", "MANUAL_REVIEW", "DUE")
    facts = story.facts()
    assert findings(facts) == {}
    the_finding(replace(facts, lanes={1: replace(facts.lanes[1], review_holds=0)}), "lane_books")


def test_attempts_without_their_claim_are_found() -> None:
    facts = Story().store("a").done("a").facts()
    the_finding(replace(facts, commands={1: replace(facts.commands[1], attempt=2)}), "claimed_once")


def test_an_attempt_claimed_twice_is_found() -> None:
    story = (
        Story().store("a").claim("a").move("a", "RETRY_WAIT", "NOT_SENT").claim("a", attempt=1).execute("a", attempt=1)
    )
    the_finding(story.move("a", "SUCCESS").facts(), "claimed_once")


def test_a_lane_token_that_doesnt_grow_is_found() -> None:
    story = Story().store("a", "b").done("a").claim("b", lane_token=1).execute("b").move("b", "SUCCESS")
    the_finding(story.facts(), "claimed_once")


def test_a_token_the_lane_never_reached_is_found() -> None:
    facts = Story().store("a").done("a").facts()
    the_finding(replace(facts, lanes={1: replace(facts.lanes[1], token=0)}), "claimed_once")


def test_a_claim_that_hides_its_token_or_window_is_found() -> None:
    story = Story().store("a").claim("a", lane_token=None, start_by=None).execute("a").move("a", "SUCCESS")
    the_finding(story.facts(), "claimed_once")
