"""`laneway-center`: serve, or migrate the schema."""

import asyncio
import contextlib
import signal
import sys
from collections.abc import Callable, Coroutine, Generator

import structlog
import typer
import uvicorn
import uvloop

from laneway_center.app import Center, build_app
from laneway_center.settings import CenterSettings
from laneway_center.store import migrate as migrations
from laneway_center.store.database import open_engine
from laneway_shared.errors import LanewayError
from laneway_shared.settings import load
from laneway_shared.telemetry import configure_logs

log = structlog.get_logger(__name__)

app = typer.Typer(
    add_completion=False, no_args_is_help=False, pretty_exceptions_enable=False, help="The Laneway center."
)


class _Server(uvicorn.Server):
    """uvicorn without its signal handling: it would end the process before the roles have stopped."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


@app.callback(invoke_without_command=True)
def serve(context: typer.Context) -> None:
    """Serve until SIGTERM or SIGINT."""
    if context.invoked_subcommand is None:
        _run(_serve)


@app.command()
def migrate() -> None:
    """Bring the database schema up to this release."""
    _run(_migrate)


def main() -> None:
    """Entry point."""
    app()


def _run(work: Callable[[CenterSettings], Coroutine[None, None, None]]) -> None:
    try:
        settings = load(CenterSettings)
        configure_logs(settings.log_level, service="center", instance=settings.instance)
        uvloop.run(work(settings))
    except LanewayError as error:
        _fail(error)
    except Exception as error:
        known, rest = _split(error)
        if known is not None:
            _fail(known)
        log.critical("center.crashed", exc_info=rest)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


def _split(error: Exception) -> tuple[LanewayError | None, Exception]:
    """The first error with a code, where several ended the roles."""
    inner: BaseException | None = error
    if isinstance(error, ExceptionGroup):
        inner = error.subgroup(LanewayError)
    while isinstance(inner, BaseExceptionGroup):
        inner = inner.exceptions[0]
    return (inner if isinstance(inner, LanewayError) else None), error


def _fail(error: LanewayError) -> None:
    print(f"laneway-center: {error.code}: {error.message}", file=sys.stderr)  # noqa: T201 - the last word
    sys.exit(1)


async def _migrate(settings: CenterSettings) -> None:
    engine = open_engine(settings.database_url, size=4, name="laneway migrate")
    try:
        await migrations.upgrade(engine)
    finally:
        await engine.dispose()


async def _serve(settings: CenterSettings) -> None:
    center = Center(settings)
    config = uvicorn.Config(
        build_app(center),
        host=settings.http_host,
        port=settings.http_port,
        log_config=None,
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=round(settings.stop_s),
    )
    server = _Server(config)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: setattr(server, "should_exit", True))
    async with center.running():
        await server.serve()
