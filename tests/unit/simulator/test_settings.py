import pytest

from laneway_shared.errors import SettingsError
from laneway_shared.settings import load
from laneway_simulator.faults import FaultPlan
from laneway_simulator.settings import SimulatorSettings


def test_defaults_make_healthy_locks() -> None:
    settings = load(SimulatorSettings)

    assert settings.http_port == 8090
    assert settings.simulator_journal_limit == 1_000_000
    assert settings.fault_plan() == FaultPlan(latency_min_ms=10, latency_max_ms=50)


def test_the_environment_makes_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANEWAY_SIMULATOR_SEED", "42")
    monkeypatch.setenv("LANEWAY_SIMULATOR_REFUSE_RATE", "0.25")

    plan = load(SimulatorSettings).fault_plan()

    assert (plan.seed, plan.refuse) == (42, 0.25)


def test_an_impossible_plan_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANEWAY_SIMULATOR_REFUSE_RATE", "0.7")
    monkeypatch.setenv("LANEWAY_SIMULATOR_BUSY_RATE", "0.7")

    with pytest.raises(SettingsError, match="more than 1"):
        load(SimulatorSettings)
