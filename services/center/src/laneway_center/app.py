"""The composition root: builds the roles of one center process and the HTTP application in front of them."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable
from datetime import timedelta
from http import HTTPStatus
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from laneway_center import __version__, metrics
from laneway_center.api import audit, commands, health, lanes, letters, registry, reviews, streams
from laneway_center.api.doors import Behind
from laneway_center.api.limits import BodyLimit
from laneway_center.dispatch.dispatcher import Dispatcher
from laneway_center.intake import Intake
from laneway_center.record.dead_letters import DeadLetterRecorder
from laneway_center.record.heartbeats import LISTENING_EVERY_S, HeartbeatRecorder
from laneway_center.record.results import ResultRecorder
from laneway_center.schedule.archiver import Archiver
from laneway_center.schedule.scheduler import Scheduler
from laneway_center.settings import CenterSettings
from laneway_center.store import migrate
from laneway_center.store.database import (
    DatabaseAwayError,
    DatabaseRefusedError,
    is_away,
    is_refused,
    open_engine,
    sqlstate,
)
from laneway_center.store.evidence import JudgeTerms
from laneway_center.wakeups import Wakeups
from laneway_shared import problems
from laneway_shared.broker import Consumer, Publisher, declare
from laneway_shared.errors import BrokerAwayError
from laneway_shared.heartbeats import Pulse
from laneway_shared.messages import Heartbeat
from laneway_shared.problems import ProblemError
from laneway_shared.topology import Topology

log = structlog.get_logger(__name__)

INTAKE_WORKERS = 2
RESULT_PREFETCH, LETTER_PREFETCH, STATE_PREFETCH = 2000, 200, 500
WAIT_S = 0.5
_NO_TABLE = ("42P01", "42703")


class Center:
    """One center process: the roles it plays and the connections they share."""

    def __init__(self, settings: CenterSettings) -> None:
        self.settings = settings
        self.topology = Topology(prefix=settings.topology_prefix)
        self.engine = open_engine(
            settings.database_url, size=settings.database_connections, name=f"laneway {settings.instance}"
        )
        self.publisher = Publisher(settings.amqp_url, f"center {settings.instance} publishes")
        metrics.BROKER_UP.set_function(lambda: float(self.publisher.connected))
        self.wakeups = Wakeups(
            settings.database_url, listens="dispatch" in settings.role_set, serves="api" in settings.role_set
        )
        self.intake = Intake(self.engine, settings, self.wakeups)
        self._prepared = asyncio.Event()  # the schema is current and the topology declared
        self._schema_ok = False
        self._consumers: dict[str, Consumer] = {}

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["Center"]:
        """Play the roles while the block runs. What a role can't get over ends the block."""
        roles = self.settings.role_set
        dispatcher: Dispatcher | None = None
        try:
            async with self.publisher.running(), asyncio.TaskGroup() as tasks:
                # its own heartbeat: the recorders hear it, and RabbitMQ tells who publishes that it is blocked
                pulse = Pulse(self.publisher, self.topology, "center", self._heartbeat)
                works: list[Awaitable[None]] = [
                    self._prepare(),
                    self.wakeups.run(),
                    pulse.run(LISTENING_EVERY_S, self._prepared),
                ]
                if "api" in roles:
                    works += [self.intake.run() for _ in range(INTAKE_WORKERS)]
                    works.append(streams.look_for_news(self.engine, self.wakeups.followers))
                if "record" in roles:
                    works += self._record_works()
                if "schedule" in roles:
                    works.append(self._after_preparing(self._scheduler().run()))
                    works.append(self._after_preparing(Archiver(self.engine, self.settings).run()))
                running = [tasks.create_task(_as_coroutine(work)) for work in works]
                dispatching: asyncio.Task[None] | None = None
                if "dispatch" in roles:
                    dispatcher = Dispatcher(self.engine, self.publisher, self.topology, self.settings, self.wakeups)
                    dispatching = tasks.create_task(self._after_preparing(dispatcher.run()), name="dispatch")
                try:
                    yield self
                finally:
                    await self._stop_dispatching(dispatcher, dispatching)
                    for task in running:
                        task.cancel()
        finally:
            await self.engine.dispose()

    async def _stop_dispatching(self, dispatcher: Dispatcher | None, task: asyncio.Task[None] | None) -> None:
        if dispatcher is None or task is None:
            return
        dispatcher.stop()
        if self._prepared.is_set():
            await asyncio.wait([task], timeout=self.settings.stop_s)
        task.cancel()

    async def _after_preparing(self, work: Awaitable[None]) -> None:
        try:
            await self._prepared.wait()
        except asyncio.CancelledError:
            if asyncio.iscoroutine(work):
                work.close()
            raise
        await work

    def _consumer(self, queue: str, prefetch: int) -> Consumer:
        consumer = Consumer(
            self.settings.amqp_url,
            f"center {self.settings.instance} reads {queue}",
            queue,
            prefetch=prefetch,
            restore=self._declare,
        )
        self._consumers[queue] = consumer
        return consumer

    @property
    def _terms(self) -> JudgeTerms:
        return JudgeTerms(grace=timedelta(seconds=self.settings.grace_s), policy=self.settings.policy)

    def _record_works(self) -> list[Awaitable[None]]:
        names, s = self.topology, self.settings
        results = self._consumer(names.result_queue, RESULT_PREFETCH)
        letters = self._consumer(names.dead_queue, LETTER_PREFETCH)
        states = self._consumer(names.state_queue, STATE_PREFETCH)
        recorder = ResultRecorder(self.engine, results, names.result_queue, self._terms, self.wakeups, s.record_batch)
        heartbeats = HeartbeatRecorder(self.engine, states, self.wakeups)
        works: list[Awaitable[None]] = [
            results.run(),
            letters.run(),
            states.run(),
            recorder.run(),
            DeadLetterRecorder(self.engine, letters, self.publisher, names).run(),
            heartbeats.run(),
        ]
        return [self._after_preparing(work) for work in works]

    def _heartbeat(self, state: str) -> Heartbeat:
        return Heartbeat(
            kind="center", service="center", instance=self.settings.instance, version=__version__, state=state
        )

    def _scheduler(self) -> Scheduler:
        return Scheduler(self.engine, self.publisher, self.topology, self.settings, self._terms, self.wakeups)

    async def _prepare(self) -> None:
        """Wait for the schema and declare the topology.

        Raises:
            TopologyMismatchError: the broker has it otherwise.
        """
        while not await self._schema_is_current():  # noqa: ASYNC110 - the database tells nobody
            await asyncio.sleep(WAIT_S)
        while True:
            try:
                await self._declare()
                break
            except BrokerAwayError as error:
                log.warning("center.waiting", error=error.message)
                await asyncio.sleep(WAIT_S)
        self._prepared.set()

    async def _declare(self) -> None:
        await declare(self.settings.amqp_url, self.topology.exchanges, self.topology.center_queues)

    async def _schema_is_current(self) -> bool:
        try:
            self._schema_ok = await migrate.is_current(self.engine)
        except Exception as error:
            if is_refused(error):
                raise DatabaseRefusedError.because(error) from error
            if not is_away(error):
                raise
            log.warning("center.waiting", error=f"PostgreSQL is away: {type(error).__name__}")
            return False
        if not self._schema_ok:
            log.warning("center.waiting", error="the schema is not current; run `laneway-center migrate`")
        return self._schema_ok

    async def readiness(self) -> tuple[bool, dict[str, str]]:
        """Whether this process can do its work, and each thing it needs: ok, or what is wrong."""
        checks = {"database": await self._database_word(), "broker": await self._broker_word()}
        for queue, consumer in self._consumers.items():
            checks[f"consumer {queue}"] = "ok" if consumer.consuming.is_set() else "not consuming"
        ready = checks["database"] == "ok"
        if "api" not in self.settings.role_set:  # nothing it could do without the broker
            ready = all(word == "ok" for word in checks.values())
        return ready, checks

    async def _database_word(self) -> str:
        try:
            async with asyncio.timeout(2), self.engine.connect() as connection:
                await connection.execute(text("SELECT 1"))
        except Exception as error:
            if not is_away(error):
                raise
            return "away"
        return "ok" if self._schema_ok else "schema not current; run `laneway-center migrate`"

    async def _broker_word(self) -> str:
        connected = self.publisher.connected
        if not connected:
            return "away"
        blocked = self.publisher.blocked
        metrics.BLOCKED_BROKER.set(1 if blocked else 0)
        return "blocked by a resource alarm" if blocked else "ok"


async def _as_coroutine(work: Awaitable[None]) -> None:
    await work


def build_app(center: Center) -> FastAPI:
    """The HTTP application of a center process."""
    app = FastAPI(
        title="Laneway",
        version=__version__,
        summary="Delivers commands to devices, in order per device, and always knows what became of them.",
        separate_input_output_schemas=False,
        responses=problems.responses(
            HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY, HTTPStatus.SERVICE_UNAVAILABLE
        ),
    )
    app.state.behind = Behind(
        engine=center.engine, intake=center.intake, settings=center.settings, wakeups=center.wakeups
    )
    app.state.readiness = center.readiness
    problems.install(app)
    app.add_exception_handler(DatabaseAwayError, _database_away)
    app.add_exception_handler(DBAPIError, _database_trouble)
    app.add_exception_handler(Exception, _unexpected)
    app.add_middleware(BodyLimit)
    app.include_router(health.router)
    if "api" in center.settings.role_set:
        for doors in (commands, streams, lanes, registry, letters, reviews, audit):
            app.include_router(doors.router)
    return app


async def _database_away(_request: Request, _error: Exception) -> JSONResponse:
    return _problem(
        ProblemError(
            HTTPStatus.SERVICE_UNAVAILABLE,
            DatabaseAwayError.code,
            "PostgreSQL can't be reached right now; try again, with the same commandId",
        ),
        {"Retry-After": "1"},
    )


async def _database_trouble(request: Request, error: Exception) -> JSONResponse:
    if sqlstate(error) in _NO_TABLE:
        detail = "the schema is not current; run `laneway-center migrate`"
        return _problem(ProblemError(HTTPStatus.SERVICE_UNAVAILABLE, "SCHEMA_OLD", detail))
    return await _unexpected(request, error)


async def _unexpected(request: Request, error: Exception) -> JSONResponse:
    log.error("http.failed", method=request.method, path=request.url.path, exc_info=error)
    detail = "something went wrong here; the log of this process says what"
    return _problem(ProblemError(HTTPStatus.INTERNAL_SERVER_ERROR, "INTERNAL", detail))


def _problem(error: ProblemError, headers: dict[str, str] | None = None) -> JSONResponse:
    content: dict[str, Any] = error.problem.model_dump(exclude_none=True)
    return JSONResponse(content, error.status, headers=headers, media_type=problems.MEDIA_TYPE)
