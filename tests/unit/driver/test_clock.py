from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from laneway_driver.clock import DRIFT, JUMP_WITNESSES, CenterClock

START = datetime(2030, 1, 1, tzinfo=UTC)


class Timeline:
    """True center time and a monotonic clock that has nothing to do with it."""

    def __init__(self, monotonic: float = 5000.0, wall: float = 1.0) -> None:
        self.passed = 0.0
        self._monotonic = monotonic
        self.clock = CenterClock(monotonic=lambda: self._monotonic + self.passed, wall=lambda: wall + self.passed)

    @property
    def true(self) -> datetime:
        return START + timedelta(seconds=self.passed)

    def receive(self, age_s: float) -> None:
        """A message that was published `age_s` ago."""
        self.clock.learn(self.true - timedelta(seconds=age_s))


AGES = st.floats(0, 30)
STEPS = st.lists(st.tuples(st.floats(0, 1000), AGES), min_size=1, max_size=30)


@given(steps=STEPS, monotonic=st.floats(0, 1e7), wall=st.floats(0, 4e9))
def test_never_ahead_of_the_center_and_behind_by_no_more_than_the_fastest_message(
    steps: list[tuple[float, float]], monotonic: float, wall: float
) -> None:
    timeline = Timeline(monotonic, wall)
    rounding = timedelta(milliseconds=1)
    seen: list[tuple[float, float]] = []
    for pause, age in steps:
        timeline.passed += pause
        timeline.receive(age)
        seen.append((timeline.passed, age))
        now = timeline.clock.now()
        assert now <= timeline.true + rounding
        lag = min(old_age + DRIFT * (timeline.passed - at) for at, old_age in seen)
        assert now >= timeline.true - timedelta(seconds=lag) - rounding


def test_a_wrong_wall_clock_doesnt_matter_and_is_reported() -> None:
    timeline = Timeline(wall=START.timestamp() + 3600)
    assert timeline.clock.wall_offset() is None
    timeline.receive(0.0)
    assert timeline.clock.now() == START
    offset = timeline.clock.wall_offset()
    assert offset is not None
    assert abs(offset - timedelta(hours=1)) < timedelta(milliseconds=1)


def test_before_the_first_message_the_wall_clock_is_all_there_is() -> None:
    assert Timeline(wall=START.timestamp()).clock.now() == START


def test_one_message_with_an_absurd_time_changes_nothing() -> None:
    timeline = Timeline()
    timeline.receive(0.0)
    for _ in range(10):
        timeline.clock.learn(datetime(2099, 1, 1, tzinfo=UTC))
        timeline.receive(0.0)
        timeline.clock.learn(datetime(1999, 1, 1, tzinfo=UTC))
    assert timeline.clock.now() == timeline.true


def test_an_absurd_first_message_is_outvoted() -> None:
    timeline = Timeline()
    timeline.clock.learn(datetime(2099, 1, 1, tzinfo=UTC))
    for _ in range(JUMP_WITNESSES):
        timeline.receive(0.1)
    assert abs(timeline.clock.now() - timeline.true) < timedelta(seconds=0.2)


def test_clocks_that_drift_apart_dont_pass_each_other() -> None:
    timeline = Timeline()
    slow = 1e-4  # the center's clock loses 100 ppm against ours
    for _ in range(100):
        timeline.passed += 600
        true = START + timedelta(seconds=timeline.passed * (1 - slow))
        timeline.clock.learn(true - timedelta(milliseconds=1))
        assert timeline.clock.now() <= true


def test_a_message_that_agrees_with_the_wall_clock_is_believed_at_once() -> None:
    timeline = Timeline(wall=START.timestamp())
    assert not timeline.clock.trusted
    timeline.receive(0.1)
    assert timeline.clock.trusted


@given(late=st.floats(2, 60), wall_off=st.sampled_from([-60.0, 0.0, 60.0]), batches=st.integers(1, 8))
def test_what_a_frozen_dispatcher_sends_late_is_never_taken_for_fresh(
    late: float, wall_off: float, batches: int
) -> None:
    timeline = Timeline(wall=START.timestamp() + wall_off)
    if any(abs(wall_off + late + n * 0.7) < 2 for n in range(batches)):
        return  # a wall clock that is wrong by just as much is a second, unrelated fault
    for n in range(batches):  # claimed one after the other, sent together when the process goes on
        timeline.receive(late + n * 0.7)
        assert not timeline.clock.trusted


@given(wall_off=st.floats(-3600, 3600), gap=st.floats(1.1, 60))
def test_with_a_wrong_wall_clock_two_fresh_messages_are_needed(wall_off: float, gap: float) -> None:
    timeline = Timeline(wall=START.timestamp() + wall_off)
    timeline.receive(0.01)
    timeline.passed += gap
    timeline.receive(0.05)
    assert timeline.clock.trusted
    assert abs(timeline.clock.now() - timeline.true) < timedelta(seconds=0.1)


def test_a_hand_made_message_doesnt_spoil_the_beginning() -> None:
    timeline = Timeline(wall=START.timestamp())
    timeline.clock.learn(datetime(2099, 1, 1, tzinfo=UTC))
    timeline.receive(0.0)
    assert timeline.clock.trusted
    assert abs(timeline.clock.now() - timeline.true) < timedelta(seconds=0.1)


def test_after_a_long_silence_a_late_message_is_not_taken_for_fresh() -> None:
    timeline = Timeline(wall=START.timestamp())
    timeline.receive(0.0)
    timeline.passed += 12 * 3600
    timeline.receive(8.0)
    assert not timeline.clock.trusted
    timeline.receive(0.1)
    assert timeline.clock.trusted
