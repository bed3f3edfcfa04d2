"""Drivers, devices and points as documents; the same forms for PUT, GET, import and export."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator
from sqlalchemy import RowMapping

from laneway_center.api.bodies import Body, Identifier, PlainObject, Text
from laneway_shared.messages import CALL_TIMEOUT_LIMIT_S, is_routing_name


def _routing_name(text: str) -> str:
    if not is_routing_name(text):
        raise ValueError("may have letters, digits, _ and - only, at most 64")
    return text


Name = Annotated[str, AfterValidator(_routing_name)]
Title = Annotated[Text, Field(max_length=256)]
Seconds = Annotated[float, Field(gt=0, le=86_400)]
LaneKey = Annotated[Text, Field(min_length=1, max_length=128)]


class PolicyBody(Body):
    """How lanes behave. What isn't said here, the next level says: point, lane, device, driver, settings."""

    gate: Literal["ack", "transport"] | None = Field(
        None, description="When the next command goes: after the answer, or after the hand-over."
    )
    retry: Literal["strict", "relaxed"] | None = Field(
        None, description="Where a command waits for its next attempt: at the head, or at the tail."
    )
    review_policy: Literal["release", "hold"] | None = Field(
        None, description="Whether a review lets the lane go on or closes it."
    )
    max_attempts: int | None = Field(None, ge=1, le=100)
    ack_timeout: Seconds | None = Field(None, description="Seconds until the device's answer is overdue.")
    depth_limit: Annotated[int, Field(ge=1, le=1_000_000)] | None = Field(
        None, description="Commands that may wait in one lane."
    )
    on_full: Literal["reject", "drop_oldest"] | None = Field(
        None, description="A full lane refuses, or gives up its oldest safe command."
    )


LaneBy = Literal["device", "group", "topic", "global"]


class DriverBody(PolicyBody):
    """A driver service, and how the lanes of its devices behave."""

    title: Title = ""
    enabled: bool = True
    lane_by: LaneBy = Field("device", description="How its devices share lanes.")
    waiting_limit: Annotated[int, Field(ge=1, le=100_000_000)] | None = Field(
        None, description="Commands that may wait for it in all lanes together."
    )


class DeviceBody(PolicyBody):
    """A device: where it hangs and how its lane behaves."""

    name: Title = ""
    device_sn: Name = Field(description="Serial number, as it stands in topics.", examples=["A100"])
    driver: Name = Field(examples=["mqtt"])
    profile: Name | None = Field(None, description="Device family; its answers come through the ack-listener.")
    enabled: bool = True
    address: PlainObject = Field(default_factory=dict, description="What the driver's adapter needs to reach it.")
    lane_key: LaneKey | None = Field(None, description="Lane; if missing, laneBy says which.")
    lane_by: LaneBy | None = Field(
        None, description="Lane of its own, of its laneGroup, of its address's topic, or the one of all; else driver's."
    )
    lane_group: Annotated[Text, Field(min_length=1, max_length=100)] | None = None


class PointBody(Body):
    """A point of a device: what may be done with it."""

    name: Name = Field(examples=["lock"])
    enabled: bool = True
    access: Literal["R", "W", "RW"] = "RW"
    value_type: Literal["string", "int", "float", "bool", "json"] = "string"
    min: float | None = Field(None, allow_inf_nan=False)
    max: float | None = Field(None, allow_inf_nan=False)
    step: float | None = Field(None, gt=0, allow_inf_nan=False)
    enum: list[Text] | None = Field(None, min_length=1, max_length=256)
    retry_safety: Literal["safe", "unsafe"] = "safe"
    gate: Literal["ack", "transport"] | None = None
    ack: Literal["device", "none"] = "device"
    ack_timeout: Seconds | None = Field(None, description="Seconds until the device's answer is overdue.")
    call_timeout: Annotated[float, Field(gt=0, le=CALL_TIMEOUT_LIMIT_S)] | None = Field(
        None, description="Seconds a call of the device may take."
    )
    max_attempts: int | None = Field(None, ge=1, le=100)
    purpose: Literal["grant", "revoke"] | None = Field(
        None, description="A revoke goes first and supersedes waiting grants of its intentKey."
    )

    @model_validator(mode="after")
    def _bounds(self) -> "PointBody":
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError("min is more than max")
        return self


class DriverEntry(DriverBody):
    """A driver in a registry document."""

    name: Name


class DeviceEntry(DeviceBody):
    """A device in a registry document, with its points."""

    device_id: Identifier
    points: list["PointEntry"] = Field(default_factory=list, max_length=1000)


class PointEntry(PointBody):
    """A point in a registry document."""

    point_id: Identifier


class LaneEntry(PolicyBody):
    """The policy of one lane, which counts before those of its devices."""

    lane_key: LaneKey


class RegistryDocument(Body):
    """A whole registry: what `POST /registry/import` takes and `GET /registry/export` gives."""

    drivers: list[DriverEntry] = Field(default_factory=list, max_length=1000)
    devices: list[DeviceEntry] = Field(default_factory=list, max_length=100_000)
    lanes: list[LaneEntry] = Field(default_factory=list, max_length=100_000)


class ImportView(Body):
    """What an import stored."""

    drivers: int
    devices: int
    points: int
    lanes: int


class InstanceView(Body):
    """An instance of a driver or ack-listener, as it last said of itself."""

    service: str
    instance: str
    kind: str
    version: str
    state: str
    capacity: int
    in_flight: int
    clock_offset_ms: float | None
    profiles: list[str]
    last_seen: Any


class DriverView(DriverEntry):
    """A driver with its instances."""

    online: bool
    instances: list[InstanceView]


# -------------------------------------------------------------------------------- to rows and back
def driver_row(name: str, body: DriverBody) -> dict[str, Any]:
    """For table driver."""
    own = {name: getattr(body, name) for name in ("title", "enabled", "lane_by", "waiting_limit")}
    return {"name": name} | own | policy_columns(body)


def policy_columns(body: PolicyBody) -> dict[str, Any]:
    """The columns of a policy, in any of its tables."""
    row = {name: getattr(body, name) for name in PolicyBody.model_fields if name != "ack_timeout"}
    return row | {"ack_timeout_ms": _milliseconds(body.ack_timeout)}


def policy_fields(row: RowMapping) -> dict[str, Any]:
    """The policy in a row of any of its tables."""
    fields = {name: row[name] for name in PolicyBody.model_fields if name != "ack_timeout"}
    return fields | {"ack_timeout": _seconds(row["ack_timeout_ms"])}


def driver_entry(row: RowMapping) -> DriverEntry:
    """A row of table driver."""
    own = {name: row[name] for name in ("name", "title", "enabled", "lane_by", "waiting_limit")}
    return DriverEntry(**own, **policy_fields(row))


def lane_row(tenant_id: int, lane: LaneEntry) -> dict[str, Any]:
    """For the policy of a lane."""
    return {"tenant_id": tenant_id, "lane_key": lane.lane_key} | policy_columns(lane)


def lane_entry(row: RowMapping) -> LaneEntry:
    """A row of table lane."""
    return LaneEntry(lane_key=row["lane_key"], **policy_fields(row))


def device_row(tenant_id: int, device_id: int, body: DeviceBody) -> dict[str, Any]:
    """For table device."""
    row = body.model_dump(exclude={"points", "device_id", "lane_key", "ack_timeout"})
    keys = {"tenant_id": tenant_id, "device_id": device_id, "own_lane_key": body.lane_key}
    return row | keys | policy_columns(body)


def point_row(tenant_id: int, device_id: int, point_id: int, body: PointBody) -> dict[str, Any]:
    """For table point."""
    row = body.model_dump(exclude={"ack_timeout", "call_timeout", "point_id"})
    return row | {
        "tenant_id": tenant_id,
        "device_id": device_id,
        "point_id": point_id,
        "ack_timeout_ms": _milliseconds(body.ack_timeout),
        "call_timeout_ms": _milliseconds(body.call_timeout),
    }


def device_entry(row: RowMapping, points: list[PointEntry]) -> DeviceEntry:
    """A row of table device."""
    own = set(DeviceEntry.model_fields) - set(PolicyBody.model_fields) - {"points", "lane_key"}
    fields = {name: row[name] for name in own} | policy_fields(row)
    return DeviceEntry(**fields, lane_key=row["own_lane_key"], points=points)


def point_entry(row: RowMapping) -> PointEntry:
    """A row of table point."""
    fields = {name: row[name] for name in PointEntry.model_fields if name not in {"ack_timeout", "call_timeout"}}
    return PointEntry(
        **fields, ack_timeout=_seconds(row["ack_timeout_ms"]), call_timeout=_seconds(row["call_timeout_ms"])
    )


def _milliseconds(seconds: float | None) -> int | None:
    return None if seconds is None else max(round(seconds * 1000), 1)


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000
