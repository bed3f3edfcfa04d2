import asyncio
import socket

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from laneway_shared.errors import SettingsError
from laneway_shared.serving import listen, serve


def test_an_address_that_is_taken_is_one_clear_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SettingsError, match=rf"^can't listen on 127\.0\.0\.1 port {port}: "):
            listen("127.0.0.1", port)


async def test_an_open_request_may_end_when_the_process_stops() -> None:
    begun, stop = asyncio.Event(), asyncio.Event()

    async def slow(_request: Request) -> PlainTextResponse:
        begun.set()
        await stop.wait()
        return PlainTextResponse("done")

    app = Starlette(routes=[Route("/slow", slow)])
    with listen("127.0.0.1", 0) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/slow"
        async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
            tasks.create_task(serve(app, listener, stop, patience_s=5))
            async with httpx.AsyncClient(trust_env=False) as client:
                asked = tasks.create_task(client.get(url))
                await begun.wait()
                stop.set()
                assert (await asked).text == "done"
