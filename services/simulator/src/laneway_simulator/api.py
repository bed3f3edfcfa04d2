"""The simulator over HTTP: locks, their behaviour, answers by hand, and the journal."""

from http import HTTPStatus
from itertools import islice
from typing import Annotated

import msgspec
from fastapi import APIRouter, FastAPI, Path, Query, Request, Response

from laneway_shared import problems
from laneway_shared.problems import ProblemError, responses
from laneway_simulator.bodies import (
    BehaviourRequest,
    BehaviourView,
    DeviceJournal,
    DeviceList,
    DeviceRequest,
    DeviceView,
    Health,
    JournalPage,
    Sent,
)
from laneway_simulator.fleet import Fleet
from laneway_simulator.journal import Entry, Event
from laneway_simulator.link import MqttLink
from laneway_simulator.locks import POINT_LIMIT, UNLOCK_POINT, Lock, MemoryFullError
from laneway_simulator.protocol import SN_PATTERN, complete_ack

_ACK_LIMIT = 65_536  # bytes of an answer by hand
_PAGE, _LARGEST_PAGE = 1_000, 100_000
Sn = Annotated[str, Path(pattern=SN_PATTERN, description="The lock's serial number.")]
EventFilter = Annotated[Event | None, Query(description="Only entries of this kind.")]
Since = Annotated[int, Query(ge=0, description="Only entries with a higher seq.")]
Limit = Annotated[int, Query(ge=1, le=_LARGEST_PAGE, description="Entries at most, oldest first.")]
_NOT_FOUND, _UNPROCESSABLE = HTTPStatus.NOT_FOUND, HTTPStatus.UNPROCESSABLE_ENTITY
_UNAVAILABLE, _TOO_LARGE = HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.REQUEST_ENTITY_TOO_LARGE


def build_app(fleet: Fleet, link: MqttLink) -> FastAPI:
    """The HTTP interface over these locks."""
    app = FastAPI(title="Laneway simulator", version="0.1.0", description="Plays MQTT door locks, with faults.")
    problems.install(app)
    app.include_router(_devices(fleet), tags=["devices"])
    app.include_router(_faults(fleet, link), tags=["faults"])
    app.include_router(_journal(fleet), tags=["journal"])
    app.include_router(_health(link), tags=["health"])
    return app


def _devices(fleet: Fleet) -> APIRouter:
    router = APIRouter()

    @router.get("/devices")
    async def list_devices(
        after: Annotated[int, Query(ge=0, description="Skip so many.")] = 0, limit: Limit = _PAGE
    ) -> DeviceList:
        """Locks that exist, with the number of their events."""
        now = fleet.now()
        page = islice(fleet, after, after + limit)
        return DeviceList(total=len(fleet), devices=[DeviceView.of(lock, now) for lock in page])

    @router.get("/devices/{sn}", responses=responses(_NOT_FOUND))
    async def get_device(sn: Sn) -> DeviceView:
        """The lock as it stands."""
        lock = fleet.find(sn)
        if lock is None:
            raise ProblemError(_NOT_FOUND, "DEVICE_UNKNOWN", f"There is no lock {sn}: nothing was sent to it so far.")
        return DeviceView.of(lock, fleet.now())

    @router.put("/devices/{sn}", responses=responses(_UNPROCESSABLE, _UNAVAILABLE))
    async def put_device(sn: Sn, body: DeviceRequest | None = None) -> DeviceView:
        """Create the lock if need be, and set points as if somebody had done it by hand (not journaled)."""
        if body is not None and UNLOCK_POINT in body.points:
            raise ProblemError(_UNPROCESSABLE, "VALIDATION", "unlock is a pulse and has no state to set.")
        lock = _summoned(fleet, sn)
        try:
            lock.set_by_hand({} if body is None else body.points)
        except MemoryFullError:
            raise ProblemError(_UNPROCESSABLE, "VALIDATION", f"A lock has at most {POINT_LIMIT} points.") from None
        return DeviceView.of(lock, fleet.now())

    return router


def _faults(fleet: Fleet, link: MqttLink) -> APIRouter:
    router = APIRouter()

    @router.put("/devices/{sn}/behaviour", responses=responses(_UNPROCESSABLE, _UNAVAILABLE))
    async def put_behaviour(sn: Sn, body: BehaviourRequest) -> BehaviourView:
        """Let the lock do this wrong, from the next command it takes up; the fault plan says nothing meanwhile."""
        behaviour = body.behaviour()
        _summoned(fleet, sn).behaviour = behaviour
        return BehaviourView.of(behaviour)

    @router.delete("/devices/{sn}/behaviour", status_code=HTTPStatus.NO_CONTENT)
    async def delete_behaviour(sn: Sn) -> None:
        """Back to the fault plan; nothing happens if there was no behaviour."""
        lock = fleet.find(sn)
        if lock is not None:
            lock.behaviour = None

    @router.post("/devices/{sn}/acks", status_code=HTTPStatus.ACCEPTED, responses=responses(_TOO_LARGE, _UNAVAILABLE))
    async def post_ack(sn: Sn, request: Request) -> Sent:
        """Send an answer by hand: a JSON object with `msgId` gets what it lacks, any other body goes out as it is."""
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > _ACK_LIMIT:
                raise ProblemError(_TOO_LARGE, "TOO_LARGE", f"An answer has at most {_ACK_LIMIT} bytes.")
        if not link.is_ready:
            raise ProblemError(_UNAVAILABLE, "BROKER_AWAY", "The MQTT broker is away; try again when /readyz says 200.")
        payload = complete_ack(sn, bytes(body))
        await fleet.answer_by_hand(sn, payload)
        return Sent(topic=link.ack_topic(sn), payload=payload.decode(errors="replace"))

    return router


def _journal(fleet: Fleet) -> APIRouter:
    router = APIRouter()
    journal = fleet.journal

    def page(entries: list[Entry], **facts: str) -> Response:
        # not through pydantic: a hundred thousand entries would stop every lock for a second
        document = {
            **facts,
            "entries": [entry.document() for entry in entries],
            "lastSeq": journal.last_seq,
            "cutEntries": journal.cut_entries,
        }
        return Response(msgspec.json.encode(document), media_type="application/json")

    @router.get("/devices/{sn}/journal", response_model=DeviceJournal)
    async def get_device_journal(
        sn: Sn, event: EventFilter = None, since: Since = 0, limit: Limit = _LARGEST_PAGE
    ) -> Response:
        """What really happened at the lock; empty for one that nothing was ever sent to."""
        return page(journal.of_device(sn, event=event, since=since, limit=limit), sn=sn)

    @router.get("/journal", response_model=JournalPage)
    async def get_journal(event: EventFilter = None, since: Since = 0, limit: Limit = _PAGE) -> Response:
        """What really happened at all locks, in one order."""
        return page(journal.of_all(event=event, since=since, limit=limit))

    @router.delete("/journal", status_code=HTTPStatus.NO_CONTENT)
    async def delete_journal() -> None:
        """Forget what happened; the locks stay as they are and the numbering goes on."""
        fleet.clear_journal()

    return router


def _health(link: MqttLink) -> APIRouter:
    router = APIRouter()

    @router.get("/healthz")
    async def healthz() -> Health:
        """The process lives."""
        return Health(status="ok")

    @router.get("/readyz", responses=responses(_UNAVAILABLE))
    async def readyz() -> Health:
        """Commands reach the locks."""
        if not link.is_ready:
            raise ProblemError(_UNAVAILABLE, "NOT_READY", "The MQTT broker is away.")
        return Health(status="ready")

    return router


def _summoned(fleet: Fleet, sn: str) -> Lock:
    lock = fleet.summon(sn)
    if lock is None:
        raise ProblemError(_UNAVAILABLE, "DEVICE_LIMIT", "There are as many locks as this process may play.")
    return lock
