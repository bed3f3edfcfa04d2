import pytest
from hypothesis import given
from hypothesis import strategies as st
from paho.mqtt.client import topic_matches_sub

from laneway_shared.profiles import covers

_segments = st.lists(st.sampled_from(["", "a", "b", "up", "+"]), min_size=1, max_size=5)


@given(_segments, st.booleans(), st.lists(st.sampled_from(["", "a", "b", "up"]), min_size=1, max_size=5))
def test_filters_match_as_paho_says(wanted: list[str], tail: bool, given_: list[str]) -> None:
    topic_filter = "/".join([*wanted, "#"] if tail else wanted)
    assert covers(topic_filter, "/".join(given_)) == topic_matches_sub(topic_filter, "/".join(given_))


@pytest.mark.parametrize("topic_filter", ["#", "+/x", "$SYS/x"])
def test_topics_of_the_broker_are_never_answers(topic_filter: str) -> None:
    assert not covers(topic_filter, "$SYS/x")
