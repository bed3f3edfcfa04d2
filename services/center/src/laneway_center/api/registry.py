"""The registry of drivers, devices and points."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from http import HTTPStatus
from typing import Annotated, Any

import yaml
from fastapi import APIRouter, Depends, Path, Query, Request
from fastapi.responses import StreamingResponse
from pydantic import ValidationError
from sqlalchemy import RowMapping
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine

from laneway_center.api.doors import LONG_PATIENCE_S, Acting, Behind, Doors, Tenant, document_body, json_body, within
from laneway_center.api.registry_bodies import (
    DeviceBody,
    DeviceEntry,
    DriverBody,
    DriverEntry,
    DriverView,
    ImportView,
    InstanceView,
    LaneEntry,
    Name,
    PointBody,
    PointEntry,
    RegistryDocument,
    device_entry,
    device_row,
    driver_entry,
    driver_row,
    lane_entry,
    lane_row,
    point_entry,
    point_row,
)
from laneway_center.store import tables
from laneway_center.store.actions import Operator
from laneway_center.store.instances import instances_of
from laneway_center.store.registry import (
    LaneInUseError,
    LaneUnnamedError,
    lane_policies,
    put_registry,
    read_devices,
    read_registry,
)
from laneway_shared.problems import ProblemError, responses

router = APIRouter(prefix="/registry", tags=["registry"])

_REFUSALS = responses(HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY, HTTPStatus.UNSUPPORTED_MEDIA_TYPE)
_UNKNOWN = responses(HTTPStatus.NOT_FOUND)
DriverName = Annotated[Name, Path(examples=["mqtt"])]
PAGE = 500  # devices read and written at once by an export
IdPath = Annotated[int, Path(ge=1, le=2**63 - 1)]


async def _put(engine: AsyncEngine, operator: Operator | None, **rows: Any) -> None:
    try:
        await within(put_registry(engine, operator=operator, **rows), LONG_PATIENCE_S)
    except LaneInUseError as error:
        raise ProblemError(HTTPStatus.CONFLICT, LaneInUseError.code, f"nothing was stored: {error.message}") from None
    except LaneUnnamedError as error:
        raise ProblemError(HTTPStatus.CONFLICT, LaneUnnamedError.code, f"nothing was stored: {error.message}") from None
    except IntegrityError as error:
        fault = str(getattr(error.orig, "__cause__", None) or error.orig).partition("\n")
        detail = str(getattr(getattr(error.orig, "__cause__", None), "detail", "") or fault[0])
        raise ProblemError(HTTPStatus.CONFLICT, "REGISTRY_CONFLICT", f"nothing was stored: {detail}") from None


@router.put("/drivers/{name}", responses=_REFUSALS, dependencies=[Depends(json_body)])
async def put_driver(name: DriverName, body: DriverBody, doors: Doors, operator: Acting) -> DriverEntry:
    """Register a driver service, or change it."""
    await _put(doors.engine, operator, drivers=[driver_row(name, body)])
    return DriverEntry(name=name, **body.model_dump())


@router.get("/drivers", responses=_UNKNOWN)
async def list_drivers(doors: Doors) -> list[DriverView]:
    """All driver services, with their instances as they last said."""
    rows = await within(read_registry(doors.engine, tables.driver), LONG_PATIENCE_S)
    instances = await within(instances_of(doors.engine), LONG_PATIENCE_S)
    return [_driver_view(row, instances) for row in rows]


@router.get("/drivers/{name}", responses=_UNKNOWN)
async def show_driver(name: DriverName, doors: Doors) -> DriverView:
    """One driver service."""
    rows = await within(read_registry(doors.engine, tables.driver, name=name), LONG_PATIENCE_S)
    if not rows:
        raise ProblemError(HTTPStatus.NOT_FOUND, "DRIVER_UNKNOWN", f"driver {name} is not in the registry")
    return _driver_view(rows[0], await within(instances_of(doors.engine, name), LONG_PATIENCE_S))


def _driver_view(row: RowMapping, instances: list[RowMapping]) -> DriverView:
    mine = [InstanceView(**{f: i[f] for f in InstanceView.model_fields}) for i in instances]
    mine = [each for each in mine if each.service == row["name"]]
    online = any(each.kind == "driver" and each.state == "online" for each in mine)
    return DriverView(**driver_entry(row).model_dump(), online=online, instances=mine)


@router.get("/instances")
async def list_instances(doors: Doors) -> list[InstanceView]:
    """All instances of drivers and ack-listeners that sent a heartbeat in the last day, as they last said."""
    rows = await within(instances_of(doors.engine), LONG_PATIENCE_S)
    return [InstanceView(**{name: row[name] for name in InstanceView.model_fields}) for row in rows]


@router.put("/devices/{device_id}", responses=_REFUSALS, dependencies=[Depends(json_body)])
async def put_device(
    device_id: IdPath, body: DeviceBody, doors: Doors, tenant_id: Tenant, operator: Acting
) -> DeviceEntry:
    """Register a device, or change it. Its points stay as they are."""
    await _put(doors.engine, operator, devices=[device_row(tenant_id, device_id, body)])
    return await show_device(device_id, doors, tenant_id)


@router.get("/devices")
async def list_devices(
    doors: Doors,
    tenant_id: Tenant,
    driver: Annotated[Name | None, Query(description="Only devices of this driver service.")] = None,
    after: Annotated[int, Query(ge=0, le=2**63 - 1, description="Only devices with a larger id.")] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 500,
) -> list[DeviceEntry]:
    """Devices of the tenant, by id, with their points."""
    exact = {} if driver is None else {"driver": driver}
    return await _devices(doors, tenant_id, after, limit, **exact)


async def _devices(doors: Behind, tenant_id: int, after: int, limit: int, **exact: Any) -> list[DeviceEntry]:
    page = read_devices(doors.engine, tenant_id, after=after, limit=limit, **exact)
    devices, points = await within(page, LONG_PATIENCE_S)
    entries: dict[int, list[PointEntry]] = {}
    for row in points:
        entries.setdefault(row["device_id"], []).append(point_entry(row))
    return [device_entry(row, entries.get(row["device_id"], [])) for row in devices]


@router.get("/devices/{device_id}", responses=_UNKNOWN)
async def show_device(device_id: IdPath, doors: Doors, tenant_id: Tenant) -> DeviceEntry:
    """One device with its points."""
    rows = await within(
        read_registry(doors.engine, tables.device, tenant_id=tenant_id, device_id=device_id), LONG_PATIENCE_S
    )
    if not rows:
        raise ProblemError(HTTPStatus.NOT_FOUND, "DEVICE_UNKNOWN", f"device {device_id} is not in the registry")
    points = await within(
        read_registry(doors.engine, tables.point, tenant_id=tenant_id, device_id=device_id), LONG_PATIENCE_S
    )
    return device_entry(rows[0], [point_entry(row) for row in points])


@router.put("/devices/{device_id}/points/{point_id}", responses=_REFUSALS, dependencies=[Depends(json_body)])
async def put_point(
    device_id: IdPath, point_id: IdPath, body: PointBody, doors: Doors, tenant_id: Tenant, operator: Acting
) -> PointEntry:
    """Register a point of a device, or change it."""
    await _put(doors.engine, operator, points=[point_row(tenant_id, device_id, point_id, body)])
    return await show_point(device_id, point_id, doors, tenant_id)


@router.get("/devices/{device_id}/points/{point_id}", responses=_UNKNOWN)
async def show_point(device_id: IdPath, point_id: IdPath, doors: Doors, tenant_id: Tenant) -> PointEntry:
    """One point."""
    rows = await within(
        read_registry(doors.engine, tables.point, tenant_id=tenant_id, device_id=device_id, point_id=point_id),
        LONG_PATIENCE_S,
    )
    if not rows:
        raise ProblemError(HTTPStatus.NOT_FOUND, "POINT_UNKNOWN", f"device {device_id} has no point {point_id}")
    return point_entry(rows[0])


_SCHEMA = RegistryDocument.model_json_schema(by_alias=True, ref_template="#/components/schemas/{model}")
_DOCUMENT = {"schema": {name: part for name, part in _SCHEMA.items() if name != "$defs"}}  # those are components


@router.post(
    "/import",
    responses=_REFUSALS,
    dependencies=[Depends(document_body)],
    openapi_extra={
        "requestBody": {"required": True, "content": {"application/yaml": _DOCUMENT, "application/json": _DOCUMENT}}
    },
)
async def import_registry(request: Request, doors: Doors, tenant_id: Tenant, operator: Acting) -> ImportView:
    """Store a whole document, YAML or JSON: all of it or nothing. What it doesn't name stays as it is."""
    document = await asyncio.to_thread(_document, await request.body())  # seconds, when it is large
    points = [
        point_row(tenant_id, device.device_id, point.point_id, point)
        for device in document.devices
        for point in device.points
    ]
    await _put(
        doors.engine,
        operator,
        drivers=[driver_row(driver.name, driver) for driver in document.drivers],
        devices=[device_row(tenant_id, device.device_id, device) for device in document.devices],
        points=points,
        lanes=[lane_row(tenant_id, lane) for lane in document.lanes],
    )
    return ImportView(
        drivers=len(document.drivers),
        devices=len(document.devices),
        points=len(points),
        lanes=len(document.lanes),
    )


_Dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def _refuse_aliases(body: bytes) -> None:
    """A few bytes of aliases make a document of any size."""
    if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(body, Loader=_Loader)):
        raise yaml.YAMLError("aliases are not taken; write it out")


def _document(body: bytes) -> RegistryDocument:
    try:
        _refuse_aliases(body)
        parsed = yaml.load(body, Loader=_Loader)  # noqa: S506 - a safe loader
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise ProblemError(
            HTTPStatus.BAD_REQUEST, "MALFORMED_DOCUMENT", f"the body is neither YAML nor JSON: {error}"[:500]
        ) from None
    try:
        document = RegistryDocument.model_validate(parsed)
    except ValidationError as error:
        faults = error.errors(include_input=False, include_url=False, include_context=False)
        detail = "; ".join(f"{'.'.join(map(str, f['loc'])) or 'document'}: {f['msg']}" for f in faults[:20])
        raise ProblemError(HTTPStatus.UNPROCESSABLE_ENTITY, "VALIDATION", detail) from None
    _refuse_twins("driver", [driver.name for driver in document.drivers])
    _refuse_twins("lane", [lane.lane_key for lane in document.lanes])
    _refuse_twins("device", [device.device_id for device in document.devices])
    for device in document.devices:
        _refuse_twins(f"device {device.device_id}: point", [point.point_id for point in device.points])
    return document


def _refuse_twins(what: str, keys: list[Any]) -> None:
    twins = sorted(key for key, times in Counter(keys).items() if times > 1)
    if twins:
        named = ", ".join(map(str, twins[:10]))
        raise ProblemError(HTTPStatus.UNPROCESSABLE_ENTITY, "VALIDATION", f"{what} stands more than once: {named}")


@router.get("/export", responses={200: {"content": {"application/yaml": {}, "application/json": _DOCUMENT}}})
async def export_registry(
    doors: Doors, tenant_id: Tenant, form: Annotated[str, Query(alias="format", pattern="^(yaml|json)$")] = "yaml"
) -> StreamingResponse:
    """The tenant's devices and all drivers as one document that import takes back; page by page, however many."""
    rows = await within(read_registry(doors.engine, tables.driver), LONG_PATIENCE_S)
    drivers = [driver_entry(row) for row in rows]
    lanes = [lane_entry(row) for row in await within(lane_policies(doors.engine, tenant_id), LONG_PATIENCE_S)]
    write = _json_parts if form == "json" else _yaml_parts
    return StreamingResponse(write(drivers, lanes, _pages(doors, tenant_id)), media_type=f"application/{form}")


async def _pages(doors: Behind, tenant_id: int) -> AsyncIterator[list[DeviceEntry]]:
    after = 0
    while page := await _devices(doors, tenant_id, after, PAGE):
        yield page
        after = page[-1].device_id


async def _json_parts(
    drivers: list[DriverEntry], lanes: list[LaneEntry], pages: AsyncIterator[list[DeviceEntry]]
) -> AsyncIterator[str]:
    yield '{"drivers":[' + ",".join(map(_json, drivers)) + '],"lanes":[' + ",".join(map(_json, lanes))
    yield '],"devices":['
    comma = ""
    async for page in pages:
        yield comma + ",".join(await asyncio.to_thread(lambda entries: [_json(entry) for entry in entries], page))
        comma = ","
    yield "]}"


async def _yaml_parts(
    drivers: list[DriverEntry], lanes: list[LaneEntry], pages: AsyncIterator[list[DeviceEntry]]
) -> AsyncIterator[str]:
    yield _yaml("drivers", drivers) if drivers else "drivers: []\n"
    if lanes:
        yield _yaml("lanes", lanes)
    first = True
    async for page in pages:
        part = await asyncio.to_thread(_yaml, "devices", page)
        yield part if first else part.partition("\n")[2]
        first = False
    if first:
        yield "devices: []\n"


def _json(entry: DriverEntry | LaneEntry | DeviceEntry) -> str:
    return entry.model_dump_json(by_alias=True, exclude_none=True)


def _yaml(name: str, entries: Sequence[DriverEntry | LaneEntry | DeviceEntry]) -> str:
    plain = [entry.model_dump(by_alias=True, exclude_none=True, mode="json") for entry in entries]
    return yaml.dump({name: plain}, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
