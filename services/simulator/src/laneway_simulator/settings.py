"""Settings of the simulator. Read from the environment (`LANEWAY_…`), built once in `main`."""

from typing import Self

from pydantic import Field, model_validator

from laneway_shared.mqtt import MqttSettings
from laneway_shared.settings import ServiceSettings
from laneway_simulator.faults import FaultPlan


class SimulatorSettings(ServiceSettings, MqttSettings):
    """Where the simulator listens, and what its locks do wrong by themselves."""

    http_host: str = Field("127.0.0.1", description="Address the simulator's HTTP interface listens on.")
    http_port: int = Field(8090, ge=0, le=65535, description="Port of the HTTP interface; 0 takes a free one.")
    simulator_seed: int = Field(1, description="Seed of every fault; same seed, same faults.")
    simulator_latency_min_ms: float = Field(10.0, ge=0, description="Shortest time a lock works, milliseconds.")
    simulator_latency_max_ms: float = Field(50.0, ge=0, description="Longest time a lock works, milliseconds.")
    simulator_refuse_rate: float = Field(0.0, ge=0, le=1, description="Share of commands that are refused.")
    simulator_busy_rate: float = Field(0.0, ge=0, le=1, description="Share of commands answered `busy`.")
    simulator_silent_before_rate: float = Field(
        0.0, ge=0, le=1, description="Share of commands neither done nor answered."
    )
    simulator_silent_after_rate: float = Field(0.0, ge=0, le=1, description="Share of commands done, not answered.")
    simulator_duplicate_ack_rate: float = Field(0.0, ge=0, le=1, description="Share of answers sent twice.")
    simulator_late_ack_rate: float = Field(0.0, ge=0, le=1, description="Share of answers that come late.")
    simulator_late_ack_ms: float = Field(15_000.0, ge=0, description="How late those answers come, milliseconds.")
    simulator_journal_limit: int = Field(
        1_000_000, ge=1, description="Journal entries kept in memory (about 300 bytes each); the oldest go first."
    )
    simulator_device_limit: int = Field(100_000, ge=1, description="Locks this process plays at most.")

    @model_validator(mode="after")
    def _plan_is_possible(self) -> Self:
        self.fault_plan()
        return self

    def fault_plan(self) -> FaultPlan:
        """What goes wrong by itself.

        Raises:
            ValueError: the shares add up to more than 1, or the latencies are the wrong way round.
        """
        return FaultPlan(
            seed=self.simulator_seed,
            latency_min_ms=self.simulator_latency_min_ms,
            latency_max_ms=self.simulator_latency_max_ms,
            refuse=self.simulator_refuse_rate,
            busy=self.simulator_busy_rate,
            silent_before=self.simulator_silent_before_rate,
            silent_after=self.simulator_silent_after_rate,
            duplicate_ack=self.simulator_duplicate_ack_rate,
            late_ack=self.simulator_late_ack_rate,
            late_ack_ms=self.simulator_late_ack_ms,
        )
