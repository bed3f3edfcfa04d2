import pytest
import structlog

from laneway_driver.clock import CenterClock
from laneway_driver.vitals import VERSION, Vitals
from unit.driver.stand_ins import NOW


def test_a_heartbeat_says_what_the_center_needs() -> None:
    clock = CenterClock(monotonic=lambda: 1.0, wall=lambda: NOW.timestamp() - 90)
    clock.learn(NOW)
    vitals = Vitals(
        clock, service="virtual", instance="virtual-1", capacity=7, in_flight=lambda: 3, health=lambda: None
    )
    beat = vitals.heartbeat("stopping")
    assert (beat.kind, beat.state, beat.service, beat.instance) == ("driver", "stopping", "virtual", "virtual-1")
    assert (beat.capacity, beat.in_flight, beat.version) == (7, 3, VERSION)
    assert (beat.clock_offset_ms, beat.sent_at) == (-90_000.0, NOW)


@pytest.mark.parametrize("said", [["no MQTT", None], [None, "no MQTT", "no MQTT", None, None]])
def test_an_adapter_that_gets_unwell_or_well_is_logged_once(said: list[str | None]) -> None:
    health = iter(said)
    vitals = Vitals(CenterClock(), service="s", instance="i", capacity=1, in_flight=int, health=lambda: next(health))
    with structlog.testing.capture_logs() as logged:
        for _ in said:
            vitals.heartbeat("online")
    assert [entry["event"] for entry in logged] == ["adapter.unwell", "adapter.well"]
