"""No body larger than the bound is ever read into memory."""

import contextlib
from http import HTTPStatus

from fastapi.responses import JSONResponse
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from laneway_shared.problems import MEDIA_TYPE, ProblemError

LIMIT_BYTES = 16 * 1024 * 1024


class BodyLimit:
    """Answers 413 to a body over the limit, by its announced length or while it comes in."""

    def __init__(self, app: ASGIApp, limit: int = LIMIT_BYTES) -> None:
        self._app, self._limit = app, limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        if announced.isdigit() and int(announced[:20]) > self._limit:
            await self._refuse(scope, receive, send)
            return
        read = 0

        async def counted() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > self._limit:
                return {"type": "http.disconnect"}  # ends the reading, whoever reads
            return message

        async def answered(message: Message) -> None:
            if read <= self._limit:  # else ours is the answer
                await send(message)

        with contextlib.suppress(ClientDisconnect):
            await self._app(scope, counted, answered)
        if read > self._limit:
            await self._refuse(scope, receive, send)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        problem = ProblemError(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "BODY_TOO_LARGE", f"at most {self._limit} bytes are taken"
        ).problem
        answer = JSONResponse(problem.model_dump(exclude_none=True), problem.status, media_type=MEDIA_TYPE)
        await answer(scope, receive, send)
