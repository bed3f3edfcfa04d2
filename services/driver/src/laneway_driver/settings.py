"""Settings of a driver process."""

from pydantic import Field

from laneway_shared.settings import ServiceSettings


class DriverSettings(ServiceSettings):
    """Read from the environment (`LANEWAY_…`). An adapter has settings of its own besides."""

    service: str = Field(
        pattern=r"^[A-Za-z0-9_-]{1,64}$",
        description="Name of the driver service: its command queue is shared by all instances of it.",
    )
    adapter: str = Field("virtual", description="Device protocol: a name in entry point group laneway.adapters.")
    capacity: int = Field(100, ge=1, le=10_000, description="Commands that run at once; announced to the center.")
    drain_s: float = Field(10.0, ge=0, description="Seconds that running commands get to finish at a stop.")
    dedup_ttl_s: float = Field(300.0, gt=0, description="Seconds for which an answered attempt is remembered.")
    dedup_size: int = Field(50_000, ge=1, description="Answered attempts that are remembered at most.")
