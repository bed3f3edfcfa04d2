"""The checker's rules about turns, holds, intents and withdrawals, on hand-made histories."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from support.stories import T0, Story, findings, the_finding, uuid_of

MINUTE = timedelta(seconds=60)
FACE: dict[str, Any] = {"intent_key": "face:1"}
REVOKE: dict[str, Any] = FACE | {"purpose": "revoke", "priority": 0}
LATEST: dict[str, Any] = FACE | {"merge": "latest"}
RELAXED: dict[str, Any] = {"retry": "relaxed"}


def eventful() -> Story:
    """Everything that operators, callers and full lanes may do to what waits."""
    story = Story().store("low", priority=3).store("a", "b").store("g", **FACE)
    story.claim("a").act("lane.hold").execute("a").move("a", "SUCCESS").give_up("g", "r", "REVOKED").store(
        "r", **REVOKE
    )
    story.act("lane.release").done("r").move("b", "CANCELLED", "CANCELLED").move("b", "CANCELLED", "SUCCESS")
    story.store("old").give_up("old", "new", "DROPPED").store("new").done("new", "low")
    story.store("u", "v", lane=2, unsafe=True, review_policy="hold").store("w", lane=2)
    story.claim("u").move("u", "MANUAL_REVIEW", "DUE").skip("u").done("v").move("u", "PENDING", "REQUEUED")
    story.store("x", lane=2).done("w").claim("u").move("u", "RETRY_WAIT", "NOT_SENT").skip("u", 1).done("x", "u")
    story.store("p", lane=3, **LATEST | RELAXED).claim("p").store("q", lane=3, **LATEST | RELAXED)
    story.move("p", "RETRY_WAIT", "NOT_SENT").give_up("p", None, "OVERTAKEN")
    story.claim("q").move("q", "RETRY_WAIT", "NOT_SENT").give_up("q", "s", "REPLACED")
    return story.store("s", lane=3, **FACE | RELAXED).done("s")


def test_a_sound_history_has_no_findings() -> None:
    assert findings(eventful().facts(), ageing=MINUTE) == {}


@pytest.mark.parametrize("until", eventful().moments)
def test_a_live_system_is_sound_at_any_moment(until: int) -> None:
    assert findings(eventful().facts(until=until), ageing=MINUTE) == {}


# ------------------------------------------------------------------------------------------- turns


@pytest.mark.parametrize(("older", "newer"), [(1, 1), (0, 1), (0, 9)])
def test_a_claim_past_one_that_waits_longer_and_is_as_urgent_is_found(older: int, newer: int) -> None:
    story = Story().store("a", priority=older).store("b", priority=newer).done("b", "a")
    finding = the_finding(story.facts(), "lane_order")
    assert uuid_of("b") in finding.about
    assert uuid_of("a") in finding.says


def test_urgent_ones_go_first() -> None:
    assert findings(Story().store("a", priority=2).store("b", priority=1).done("b", "a").facts(), ageing=MINUTE) == {}


def test_a_claim_before_a_newer_more_urgent_one_is_found_where_ageing_is_known() -> None:
    facts = Story().store("a", priority=2).store("b", priority=1).done("a", "b").facts()
    assert findings(facts) == {}, "the first may have been waiting long enough to count as more urgent"
    the_finding(facts, "lane_order", ageing=MINUTE)
    the_finding(facts, "lane_order", ageing=timedelta(seconds=2, milliseconds=2))
    assert findings(facts, ageing=timedelta(seconds=2)) == {}, "after two seconds it counts as a 1, and is older"
    assert findings(facts, ageing=timedelta(seconds=1)) == {}


def test_one_that_waited_long_enough_goes_before_newer_urgent_ones() -> None:
    story = Story().store("a", priority=2)
    story.now += 2 * MINUTE
    facts = story.store("b", priority=0).done("b", "a").facts()
    assert findings(facts) == {}, "without ageing it would be right"
    the_finding(facts, "lane_order", ageing=MINUTE)


def test_what_doesnt_wait_or_is_too_late_is_nobodys_senior() -> None:
    story = Story().store("a", expire_at=T0).store("b", "c").move("b", "CANCELLED", "CANCELLED").done("c")
    assert findings(story.move("a", "EXPIRED", "DUE").facts()) == {}


def test_a_deadline_that_a_replay_moved_says_nothing_about_the_time_before() -> None:
    story = Story().store("a", "b").done("b").move("a", "EXPIRED", "DUE").move("a", "PENDING", "REPLAYED").store("c")
    assert findings(story.done("a", "c").facts()) == {}
    story = Story().store("a").move("a", "EXPIRED", "DUE").move("a", "PENDING", "REPLAYED").store("c").done("c", "a")
    the_finding(story.facts(), "lane_order")


def test_a_relaxed_retry_goes_behind_the_others_and_a_strict_one_keeps_its_turn() -> None:
    for retry, is_found in (("strict", False), ("relaxed", True)):
        story = Story().store("a", "b", retry=retry).claim("a").move("a", "RETRY_WAIT", "NOT_SENT").done("a", "b")
        assert set(findings(story.facts())) == ({"lane_order"} if is_found else set())


def test_a_skipped_command_goes_behind_the_others() -> None:
    story = Story().store("a", priority=0).store("b").skip("a").done("b", "a")
    assert findings(story.facts(), ageing=MINUTE) == {}
    the_finding(Story().store("a", priority=0).store("b").skip("a").done("a", "b").facts(), "lane_order")


def test_what_was_claimed_before_a_skip_is_not_judged_by_the_priority_after_it() -> None:
    story = Story().store("a").store("b", priority=0).claim("b").move("b", "RETRY_WAIT", "NOT_SENT")
    assert findings(story.skip("b", 1).done("a", "b").facts(), ageing=MINUTE) == {}


def test_a_retry_with_a_newer_age_than_its_place_hides_the_others_of_its_priority() -> None:
    """The database looks at the first place of each priority; that one's age may say otherwise."""
    story = Story().store("r", priority=0, **RELAXED).store("o", priority=1).claim("r")
    story.move("r", "RETRY_WAIT", "DUE").store("w", priority=0).move("r", "RETRY_WAIT", "STARTED")
    story.now += 2 * MINUTE
    assert findings(story.done("o", "w", "r").facts(), ageing=MINUTE) == {}


# ------------------------------------------------------------------------------------------- holds


def test_a_claim_between_hold_and_release_is_found() -> None:
    story = Story().store("a", "b", "c").done("a").act("lane.hold").done("b").act("lane.release").done("c")
    assert uuid_of("b") in the_finding(story.facts(), "held").about


def test_a_claim_after_a_hold_that_nobody_released_is_found() -> None:
    the_finding(Story().store("a").act("lane.hold").done("a").facts(), "held")


def test_what_is_in_flight_may_end_in_a_held_lane() -> None:
    story = Story().store("a").claim("a").act("lane.hold").execute("a").move("a", "SUCCESS")
    assert findings(story.facts()) == {}


def test_a_hold_without_its_token_is_not_judged() -> None:
    facts = Story().store("a").act("lane.hold").done("a").facts()
    acts = {key: [replace(act, token=None) for act in done] for key, done in facts.acts.items()}
    assert findings(replace(facts, acts=acts)) == {}


def test_a_mark_that_a_result_took_away_is_found() -> None:
    facts = Story().store("a").claim("a").act("lane.hold").execute("a").move("a", "SUCCESS").facts()
    lanes = {1: replace(facts.lanes[1], operator_hold=None)}
    found = findings(replace(facts, lanes=lanes))
    assert [finding.says for finding in found.pop("held")] == ["its last act was a hold, its mark is None"]
    assert found == {}


def test_a_claim_while_a_review_holds_the_lane_is_found() -> None:
    for policy, is_found in (("hold", True), ("release", False)):
        story = Story().store("a", unsafe=True, review_policy=policy).store("b").claim("a")
        story.move("a", "MANUAL_REVIEW", "DUE").done("b").move("a", "FAILED", "FAILED")
        assert set(findings(story.facts())) == ({"held"} if is_found else set())


# ----------------------------------------------------------------------------------------- intents


@pytest.mark.parametrize("newer", [REVOKE, LATEST, LATEST | {"purpose": "grant"}])
def test_what_waits_on_though_a_newer_one_ends_it_is_found(newer: dict[str, Any]) -> None:
    story = Story().store("a", **FACE).store("b", **newer).done(*("b", "a") if newer is REVOKE else ("a", "b"))
    finding = the_finding(story.facts(), "intents")
    assert uuid_of("a") in finding.about
    assert uuid_of("b") in finding.says


def test_what_is_on_its_way_elsewhere_or_of_another_intent_goes_on() -> None:
    story = Story().store("a", **FACE).claim("a").store("b", intent_key="face:2").store("c", device_id=2, **FACE)
    story.store("r", **REVOKE).execute("a").move("a", "SUCCESS").done("r", "b", "c")
    assert findings(story.facts()) == {}


def test_a_revocation_leaves_other_revocations() -> None:
    assert findings(Story().store("a", **REVOKE).store("b", **REVOKE).done("a", "b").facts()) == {}


def test_a_relaxed_retry_is_not_behind_a_newer_one_of_its_intent() -> None:
    story = Story().store("a", **FACE | RELAXED).claim("a").store("b", **FACE | RELAXED)
    the_finding(story.move("a", "RETRY_WAIT", "NOT_SENT").done("b", "a").facts(), "intents")
    story = Story().store("a", **FACE | RELAXED).claim("a").move("a", "RETRY_WAIT", "NOT_SENT")
    the_finding(story.store("b", **FACE | RELAXED).done("b", "a").facts(), "intents")


def test_a_skipped_grant_is_not_behind_its_revocation() -> None:
    story = Story().store("a", **FACE).claim("a").store("r", **REVOKE).move("a", "RETRY_WAIT", "NOT_SENT")
    the_finding(story.skip("a").done("r", "a").facts(), "intents")


def test_a_strict_retry_runs_before_its_revocation() -> None:
    story = Story().store("a", **FACE).claim("a").store("r", **REVOKE).move("a", "RETRY_WAIT", "NOT_SENT")
    assert findings(story.done("a", "r").facts()) == {}


# --------------------------------------------------------------------------------------- withdrawn


def test_an_unsafe_command_that_was_dropped_is_found() -> None:
    story = Story().store("a", unsafe=True).give_up("a", "b", "DROPPED").store("b").done("b")
    the_finding(story.facts(), "withdrawn")


@pytest.mark.parametrize(
    ("code", "newer", "says"),
    [
        ("REPLACED", FACE | {"lane": 2}, "another lane"),
        ("REPLACED", {"intent_key": "face:2"}, "another intent"),
        ("REPLACED", FACE | {"device_id": 2}, "another intent"),
        ("REVOKED", FACE, "doesn't revoke it"),
        ("DROPPED", {"lane": 2}, "another lane"),
    ],
)
def test_one_given_up_for_another_that_doesnt_take_its_place_is_found(
    code: str, newer: dict[str, Any], says: str
) -> None:
    story = Story().store("a", **FACE).give_up("a", "b", code).store("b", **newer).done("b")
    assert says in the_finding(story.facts(), "withdrawn").says


def test_one_given_up_for_nobody_is_found() -> None:
    says = the_finding(Story().store("a").give_up("a", "b", "DROPPED").facts(), "withdrawn").says
    assert "not in the database" in says
    story = Story().store("a", "b", **FACE).give_up("a", "b", "REPLACED").done("b")
    assert "stored before" in the_finding(story.facts(), "withdrawn").says


def test_evidence_withdraws_nothing() -> None:
    for status in ("CANCELLED", "SUPERSEDED"):
        the_finding(Story().store("a").move("a", status, "DUE").facts(), "transitions")


@pytest.mark.parametrize("status", ["CANCELLED", "SUPERSEDED"])
def test_what_was_withdrawn_is_neither_claimed_nor_executed_after_that(status: str) -> None:
    story = Story().store("a").claim("a").execute("a").move("a", "RETRY_WAIT", "DUE").move("a", status, status)
    assert findings(story.facts()) == {}
    late = story.now + timedelta(seconds=1)
    assert findings(story.execute("a", at=late).facts()) == {}
    the_finding(story.execute("a", at=late + timedelta(milliseconds=1)).facts(), "withdrawn_not_executed")
    again = Story().store("a").move("a", status, status).claim("a").execute("a").move("a", "SUCCESS")
    assert "transitions" in findings(again.facts())
