"""HTTP, as a service serves it: its own listener, and an end when the process is told to stop.

Needs the extra `http` of this distribution.
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Generator

import uvicorn
from starlette.types import ASGIApp

from laneway_shared.errors import SettingsError


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one.

    Raises:
        SettingsError: the address can't be listened on.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise SettingsError(f"can't listen on {host} port {port}: {error.strerror or error}") from None


async def serve(
    app: ASGIApp,
    listener: socket.socket,
    stop: asyncio.Event,
    *,
    patience_s: float,
    stopping: Callable[[], None] = lambda: None,
) -> None:
    """Serve until `stop` is set; open requests get `patience_s` to end. `stopping` tells those that wait for long."""
    config = uvicorn.Config(
        app,
        http="httptools",  # the other parser costs as much as the rest of a request
        log_config=None,
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=round(patience_s),
    )
    server = _Server(config)
    async with asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(server.serve(sockets=[listener]), name="http")
        serving.add_done_callback(lambda _: stop.set())
        await stop.wait()
        stopping()
        server.should_exit = True


class _Server(uvicorn.Server):
    """uvicorn without its signal handling: it would end the process by the signal, before the rest has stopped."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield
