"""What each piece of evidence does to a command: the table, and what holds whatever comes in whatever order."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from laneway_shared.judgement import Evidence, Snapshot, judge
from laneway_shared.lifecycle import FINAL, TRANSITIONS, WAITING, Gate, ResultKind, RetryPlace, Status, sources

K, S = ResultKind, Status
T0 = datetime(2030, 1, 1, tzinfo=UTC)
WINDOW, CALL, GRACE = timedelta(seconds=10), timedelta(seconds=5), timedelta(seconds=5)


def after(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def command(status: Status = S.SENT, **fields: object) -> Snapshot:
    base = Snapshot(
        status=status,
        attempt=1,
        expire_at=after(60),
        start_by=T0 + WINDOW,
        quiet_at=T0 + WINDOW + CALL + GRACE,
        grace=GRACE,
        next_visible_at=after(8) if status is S.RETRY_WAIT else None,
        ack_due_at=after(12) if status is S.AWAITING_ACK else None,
    )
    return replace(base, **fields)


def said(kind: ResultKind, at: float = 0, **fields: object) -> Evidence:
    return Evidence(kind=kind, at=after(at), **({"attempt": 1} | fields))  # type: ignore[arg-type]


def outcome(row: Snapshot, kind: ResultKind, at: float = 1, **fields: object) -> Snapshot:
    return judge(row, said(kind, at, **fields), now=after(at)).snapshot


# ------------------------------------------------------------------------------- the table, line by line
@pytest.mark.parametrize("status", [S.PENDING, S.DISPATCHING, S.SENT, S.AWAITING_ACK, S.RETRY_WAIT, S.MANUAL_REVIEW])
def test_the_newest_attempts_success_ends_it_from_wherever_it_is(status: Status) -> None:
    done = outcome(command(status), K.SUCCESS, response_value="1")
    assert (done.status, done.response_value, done.due_at) == (S.SUCCESS, "1", None)


def test_success_takes_back_the_error_of_an_earlier_attempt() -> None:
    row = command(S.RETRY_WAIT, attempt=2, error_code="BUSY", error_message="later")
    assert outcome(row, K.SUCCESS, attempt=2).error_code is None


@pytest.mark.parametrize("status", sorted(FINAL))
@pytest.mark.parametrize("kind", list(K))
def test_a_final_state_never_changes(status: Status, kind: ResultKind) -> None:
    row = command(status)
    assert judge(row, said(kind, 999), now=after(999)).snapshot is row


def test_transmitted_waits_for_the_answer_and_names_when_it_is_due() -> None:
    row = outcome(command(), K.TRANSMITTED, at=1, ack_timeout=timedelta(seconds=3))
    assert (row.status, row.ack_due_at) == (S.AWAITING_ACK, after(4))
    assert row.due_at == row.quiet_at, "the device may act until then"


def test_how_long_an_answer_may_take_is_said_by_the_point_then_the_family_then_the_policy() -> None:
    second = timedelta(seconds=1)
    assert outcome(command(ack_timeout=2 * second), K.TRANSMITTED, at=1, ack_timeout=3 * second).ack_due_at == after(3)
    assert outcome(command(), K.TRANSMITTED, at=1, ack_timeout=3 * second).ack_due_at == after(4)
    assert outcome(command(), K.TRANSMITTED, at=1).ack_due_at == after(11)


def test_transmitted_is_success_where_no_answer_is_expected() -> None:
    assert outcome(command(ack_expected=False), K.TRANSMITTED).status is S.SUCCESS


def test_refused_for_good_fails() -> None:
    row = outcome(command(S.AWAITING_ACK), K.FAILED, error_code="DEVICE_REFUSED")
    assert (row.status, row.error_code) == (S.FAILED, "DEVICE_REFUSED")


def test_busy_is_tried_again() -> None:
    row = outcome(command(S.AWAITING_ACK), K.FAILED, retryable=True)
    assert (row.status, row.attempts_spent) == (S.RETRY_WAIT, 1)


def test_busy_behind_an_open_transport_gate_is_not_tried_again() -> None:
    row = command(S.AWAITING_ACK, gate=Gate.TRANSPORT)
    assert outcome(row, K.FAILED, retryable=True).status is S.FAILED


def test_not_sent_backs_off_and_doubles() -> None:
    first = outcome(command(), K.NOT_SENT, at=1)
    assert (first.status, first.next_visible_at) == (S.RETRY_WAIT, after(3))
    second = outcome(command(attempts_spent=1), K.NOT_SENT, at=1)
    assert second.next_visible_at == after(5)


def test_attempts_used_up_is_dead() -> None:
    row = outcome(command(attempts_spent=2), K.NOT_SENT, error_code="MQTT_AWAY")
    assert (row.status, row.error_code) == (S.DEAD, "MQTT_AWAY")


@pytest.mark.parametrize("kind", [K.RELEASED, K.EXPIRED])
def test_given_back_or_window_missed_costs_no_attempt(kind: ResultKind) -> None:
    row = outcome(command(attempts_spent=2), kind)
    assert (row.status, row.attempts_spent) == (S.RETRY_WAIT, 2)


def test_released_goes_again_at_once() -> None:
    assert outcome(command(), K.RELEASED, at=1).next_visible_at == after(1)


def test_the_start_window_missed_past_the_deadline_expires() -> None:
    row = outcome(command(expire_at=after(5)), K.EXPIRED, at=6)
    assert (row.status, row.error_code) == (S.EXPIRED, "DEADLINE")


def test_no_retry_is_planned_beyond_the_deadline() -> None:
    row = command(expire_at=after(2))
    assert outcome(row, K.NOT_SENT, at=1).status is S.EXPIRED, "it was never called"
    assert outcome(row, K.FAILED, at=1, retryable=True).status is S.FAILED, "the device said no"
    assert outcome(replace(row, may_have_run=True, called=True), K.NOT_SENT, at=1).status is S.TIMEOUT


def test_unknown_of_a_safe_command_waits_for_the_bound_and_goes_again() -> None:
    early = outcome(command(), K.UNKNOWN, at=3, error_code="CALL_TIMEOUT")
    assert (early.status, early.due_at) == (S.SENT, early.quiet_at), "the device may still act"
    assert outcome(early, K.DUE, at=20).status is S.RETRY_WAIT


def test_unknown_of_an_unsafe_command_is_for_a_person() -> None:
    early = outcome(command(unsafe=True), K.UNKNOWN, at=3)
    row = outcome(early, K.DUE, at=20)
    assert (row.status, row.due_at) == (S.MANUAL_REVIEW, None)


def test_unsafe_without_started_was_never_called() -> None:
    row = outcome(command(unsafe=True), K.DUE, at=15)
    assert (row.status, row.called) == (S.RETRY_WAIT, False)


def test_unsafe_with_started_is_for_a_person() -> None:
    started = outcome(command(unsafe=True), K.STARTED, at=2)
    assert started.status is S.SENT
    assert outcome(started, K.DUE, at=16).status is S.SENT, "asked before the call could be over"
    assert outcome(started, K.DUE, at=20).status is S.MANUAL_REVIEW


def test_started_and_then_certainly_not_called_can_still_expire() -> None:
    started = outcome(command(unsafe=True, expire_at=after(5)), K.STARTED, at=2)
    late = outcome(started, K.EXPIRED, at=6)
    assert (late.status, late.called) == (S.EXPIRED, False)


def test_absence_counts_from_when_it_was_seen_not_from_when_it_is_applied() -> None:
    question = said(K.DUE, at=14.9)
    assert judge(command(unsafe=True), question, now=after(99)).snapshot.status is S.SENT


def test_an_absence_seen_in_the_future_is_no_absence() -> None:
    question = said(K.DUE, at=10_000)
    assert judge(command(unsafe=True), question, now=after(1)).snapshot.status is S.SENT


def test_a_late_started_turns_an_assumed_absence_into_a_review() -> None:
    absent = outcome(command(unsafe=True), K.DUE, at=15)
    assert outcome(absent, K.STARTED, at=16).status is S.MANUAL_REVIEW


def test_a_late_started_after_a_certain_not_sent_changes_nothing() -> None:
    sure = outcome(command(unsafe=True), K.NOT_SENT, at=1)
    assert outcome(sure, K.STARTED, at=2) is sure


def test_a_letter_is_a_hint_until_the_bound() -> None:
    row = outcome(command(unsafe=True), K.LETTER, at=11, reason="expired")
    assert row.status is S.SENT
    late = outcome(row, K.DUE, at=15)
    assert (late.status, late.attempts_spent) == (S.RETRY_WAIT, 0), "the broker's TTL costs no attempt"


def test_what_no_driver_can_read_is_dead() -> None:
    row = outcome(command(), K.LETTER, at=1, reason="rejected")
    dead = outcome(row, K.DUE, at=20)
    assert (dead.status, dead.error_code) == (S.DEAD, "UNREADABLE")


def test_redelivered_leaves_it_to_the_bound() -> None:
    row = command(unsafe=True)
    assert outcome(row, K.REDELIVERED) is row


def test_an_older_attempts_answer_changes_nothing() -> None:
    row = command(attempt=2)
    assert outcome(row, K.SUCCESS, attempt=1) is row


def test_an_answer_without_attempt_means_the_newest() -> None:
    assert outcome(command(attempt=2), K.SUCCESS, attempt=None).status is S.SUCCESS


def test_a_no_without_attempt_never_repeats_an_unsafe_command_that_was_tried_before() -> None:
    row = outcome(command(unsafe=True, attempt=2), K.FAILED, attempt=None, retryable=True)
    assert (row.status, row.unknown) == (S.SENT, True)
    assert outcome(row, K.DUE, at=20, attempt=2).status is S.MANUAL_REVIEW


def test_late_evidence_resolves_a_review() -> None:
    row = command(S.MANUAL_REVIEW, unsafe=True)
    assert outcome(row, K.SUCCESS).status is S.SUCCESS
    assert outcome(row, K.FAILED).status is S.FAILED
    assert outcome(row, K.NOT_SENT, error_code="START_WINDOW").error_code == "START_WINDOW"
    assert outcome(row, K.EXPIRED).status is S.FAILED, "certainly not done"
    assert outcome(row, K.UNKNOWN) is row


def test_an_overdue_answer_behind_an_open_transport_gate_times_out() -> None:
    row = command(S.AWAITING_ACK, gate=Gate.TRANSPORT)
    assert outcome(row, K.DUE, at=20).status is S.TIMEOUT
    assert outcome(replace(row, unsafe=True), K.DUE, at=20).status is S.MANUAL_REVIEW


def test_the_deadline_ends_what_waits() -> None:
    assert outcome(command(S.PENDING, attempt=0), K.DUE, at=60, attempt=0).status is S.EXPIRED
    waits = command(S.RETRY_WAIT, called=True, may_have_run=True)
    assert outcome(waits, K.DUE, at=60).status is S.TIMEOUT
    assert outcome(waits, K.DUE, at=59).status is S.RETRY_WAIT


def test_every_state_is_reached_and_left_as_declared() -> None:
    assert set(TRANSITIONS) == set(S) - FINAL
    assert S.SENT in TRANSITIONS[S.DISPATCHING]
    assert sources(S.SENT) == [S.DISPATCHING]
    assert {target for targets in TRANSITIONS.values() for target in targets} == set(S) - {S.PENDING}


# --------------------------------------------------------------------- whatever comes, in whatever order
EVENTS = st.lists(
    st.tuples(
        st.sampled_from([*K, "CLAIM", "CONFIRM"]),
        st.sampled_from([0, 0, -1, None]),  # about the newest attempt, the one before, or none named
        st.floats(0, 8),  # seconds that pass first
        st.booleans(),  # retryable
        st.sampled_from(["expired", "rejected", "delivery_limit"]),
    ),
    max_size=40,
)


def claimed(row: Snapshot, now: datetime) -> Snapshot:
    start_by = min(now + WINDOW, row.expire_at)
    fresh = replace(
        row,
        status=S.DISPATCHING,
        attempt=row.attempt + 1,
        start_by=start_by,
        quiet_at=start_by + CALL + GRACE,
        started=False,
        unknown=False,
        letter=None,
        absent=False,
        next_visible_at=None,
        ack_due_at=None,
    )
    return replace(fresh, due_at=fresh.absence_at)


def assert_sound(old: Snapshot, new: Snapshot, evidence: Evidence, now: datetime) -> None:
    moved = new.status is not old.status
    if moved:
        assert new.status in TRANSITIONS[old.status]
    assert new.attempts_spent <= new.max_attempts
    assert new.attempt == old.attempt
    assert (new.due_at is None) == (new.status in FINAL or new.status is S.MANUAL_REVIEW)
    assert (new.next_visible_at is not None) == (new.status is S.RETRY_WAIT)
    if new.status is S.MANUAL_REVIEW:
        assert new.unsafe
    if moved and new.status is S.EXPIRED:
        assert not old.called, "EXPIRED says that no attempt called the device"
    if moved and new.status is S.RETRY_WAIT:
        assert new.next_visible_at is not None
        assert new.next_visible_at < new.expire_at
        assert new.holds_lane == (new.retry is RetryPlace.STRICT)
        if new.absent:
            assert evidence.at is not None or old.unknown
            bound = old.start_by + GRACE if new.unsafe and old.start_by else old.quiet_at
            assert bound is not None
            assert now >= bound, "absence is judged late"
    if moved and new.unsafe and old.unknown and old.status is not S.MANUAL_REVIEW:
        sure = evidence.kind in (K.SUCCESS, K.FAILED, K.NOT_SENT, K.RELEASED, K.EXPIRED)
        assert sure or new.status not in WAITING, "an unsafe command of unknown outcome never goes again"


@settings(max_examples=400, deadline=None)
@given(
    events=EVENTS,
    unsafe=st.booleans(),
    gate=st.sampled_from(Gate),
    retry=st.sampled_from(RetryPlace),
    lifetime=st.sampled_from([3, 10, 30, 120]),
)
def test_any_history_is_sound(
    events: list[tuple[str, int | None, float, bool, str]], unsafe: bool, gate: Gate, retry: RetryPlace, lifetime: int
) -> None:
    now = T0
    row = Snapshot(status=S.PENDING, unsafe=unsafe, gate=gate, retry=retry, expire_at=after(lifetime), grace=GRACE)
    row = replace(row, due_at=row.expire_at)
    for kind, which, seconds, retryable, reason in events:
        now += timedelta(seconds=seconds)
        if kind == "CLAIM":
            visible = row.next_visible_at is None or row.next_visible_at <= now
            if row.status in WAITING and row.expire_at > now and visible:
                row = claimed(row, now)
        elif kind == "CONFIRM":
            row = replace(row, status=S.SENT) if row.status is S.DISPATCHING else row
        else:
            attempt = None if which is None else max(row.attempt + which, 0)
            evidence = Evidence(kind=ResultKind(kind), attempt=attempt, at=now, retryable=retryable, reason=reason)
            new = judge(row, evidence, now=now, chance=0.5).snapshot
            assert_sound(row, new, evidence, now)
            row = new
    # left alone, it ends: whoever waits is expired, whoever is in flight is asked after
    for _ in range(12):
        now += timedelta(seconds=30)
        row = judge(row, Evidence(kind=K.DUE, attempt=row.attempt, at=now), now=now).snapshot
    assert row.status in FINAL or row.status is S.MANUAL_REVIEW
