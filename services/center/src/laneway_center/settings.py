"""Everything about a center process that can be set."""

from datetime import timedelta
from typing import Any

from pydantic import Field, field_validator, model_validator

from laneway_shared.judgement import Policy
from laneway_shared.settings import ServiceSettings

ROLES = ("api", "dispatch", "record", "schedule")


class CenterSettings(ServiceSettings):
    """Settings of the center, from `LANEWAY_…` variables."""

    database_url: str = Field(
        "postgresql://laneway:laneway@localhost:5432/laneway", description="PostgreSQL 15 or newer, as a URL."
    )
    database_connections: int = Field(10, ge=4, le=200, description="Connections to PostgreSQL, at most.")
    http_host: str = Field("127.0.0.1", description="Address the HTTP server binds.")
    http_port: int = Field(8080, ge=0, le=65535, description="Port of the HTTP server.")
    roles: str = Field("api,dispatch,record,schedule", description="Roles of this process, separated by commas.")
    default_deadline_s: float = Field(10.0, gt=0, description="Seconds until a command expires if it doesn't say.")
    longest_deadline_s: float = Field(86_400.0, gt=0, description="Seconds: the longest deadline accepted.")
    start_window_s: float = Field(10.0, gt=0, le=30, description="Seconds after a claim within which a call starts.")
    grace_s: float = Field(5.0, gt=0, description="Seconds after the last possible effect until absence is judged.")
    call_timeout_s: float = Field(5.0, gt=0, description="Seconds a device call takes at most, unless the point says.")
    ack_timeout_s: float = Field(10.0, gt=0, description="Seconds until an answer is overdue, unless the point says.")
    max_attempts: int = Field(3, ge=1, le=100, description="Attempts that count, unless the point or command says.")
    lane_depth_limit: int = Field(2000, ge=1, description="Commands waiting in one lane, unless a policy says.")
    driver_waiting_limit: int = Field(
        2_000_000, ge=1, description="Commands waiting for one driver service, unless its registration says."
    )
    waiting_limit: int = Field(5_000_000, ge=1, description="Commands waiting in all lanes together.")
    ageing_s: float = Field(60.0, gt=0, description="Seconds of waiting that raise a command's priority by one.")
    retry_base_s: float = Field(2.0, gt=0, description="Seconds before the first retry; doubles each time.")
    retry_cap_s: float = Field(1800.0, gt=0, description="Seconds: the longest pause between retries.")
    offline_after_s: float = Field(15.0, gt=0, description="Seconds of silence after which an instance is offline.")
    claim_batch: int = Field(128, ge=1, le=1000, description="Lanes claimed in one statement, at most.")
    record_batch: int = Field(500, ge=1, le=5000, description="Result messages applied in one transaction, at most.")
    dispatch_poll_s: float = Field(0.25, gt=0, description="Seconds between looks for ready lanes when nobody wakes.")
    schedule_poll_s: float = Field(0.25, gt=0, description="Seconds between looks for commands that are due.")
    hot_window_s: float = Field(
        86_400.0, gt=0, description="Seconds after their end for which commands stay in the hot tables."
    )
    history_retention_s: float = Field(
        604_800.0,
        ge=86_400,
        description="Seconds after their end for which commands are kept at all, and their ids known; by whole days.",
    )
    letter_retention_s: float = Field(604_800.0, gt=0, description="Seconds for which dead letters are kept.")
    archive_batch: int = Field(200, ge=1, le=5000, description="Commands moved to the history in one transaction.")
    archive_poll_s: float = Field(10.0, gt=0, description="Seconds between looks for commands to move or drop.")
    capacity_lead: float = Field(
        1.0, ge=0, description="How much more than its announced capacity a driver service is sent, as a share of it."
    )
    mark_sent_after_s: float = Field(
        0.2, ge=0, description="Seconds for which a result may come first before a confirmed command is marked SENT."
    )
    confirm_timeout_s: float = Field(5.0, gt=0, description="Seconds to wait for a publisher confirm.")
    stop_s: float = Field(10.0, gt=0, description="Seconds a stopping process waits for open requests.")

    @field_validator("roles")
    @classmethod
    def _known_roles(cls, value: str) -> str:
        named = [part.strip() for part in value.split(",") if part.strip()]
        unknown = sorted(set(named) - set(ROLES))
        if unknown or not named:
            raise ValueError(f"roles are {', '.join(ROLES)}; got {', '.join(unknown) or 'none'}")
        return ",".join(named)

    @model_validator(mode="after")
    def _hot_within_retention(self) -> "CenterSettings":
        if self.history_retention_s < self.hot_window_s:
            raise ValueError("LANEWAY_HISTORY_RETENTION_S is shorter than LANEWAY_HOT_WINDOW_S")
        return self

    @property
    def role_set(self) -> frozenset[str]:
        """The roles of this process."""
        return frozenset(self.roles.split(","))

    @property
    def lane_defaults(self) -> dict[str, Any]:
        """What holds for a lane where nobody says otherwise (laneway_center.policies)."""
        return {
            "gate": "ack",
            "retry": "strict",
            "review_policy": "release",
            "max_attempts": self.max_attempts,
            "ack_timeout_ms": None,  # the device family's own, or ack_timeout_s
            "depth_limit": self.lane_depth_limit,
            "on_full": "reject",
        }

    @property
    def policy(self) -> Policy:
        """Back-off between attempts, and how long answers may take."""
        return Policy(
            base=timedelta(seconds=self.retry_base_s),
            cap=timedelta(seconds=self.retry_cap_s),
            ack_timeout=timedelta(seconds=self.ack_timeout_s),
        )
