"""A caller that costs little: HTTP/1.1 over one connection that stays open, one request at a time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import orjson


class Caller:
    """One connection to a center. The load generator shares the machine, so it is kept small on purpose."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str) -> None:
        self._reader, self._writer, self._host = reader, writer, host

    async def post(self, path: str, body: bytes) -> tuple[int, Any]:
        """Status and body of the answer."""
        return await self._send("POST", path, body)

    async def put(self, path: str, body: bytes) -> tuple[int, Any]:
        """Status and body of the answer."""
        return await self._send("PUT", path, body)

    async def _send(self, method: str, path: str, body: bytes) -> tuple[int, Any]:
        head = f"{method} {path} HTTP/1.1\r\nHost: {self._host}\r\nContent-Type: application/json\r\n"
        return await self._ask(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)

    async def get(self, path: str) -> tuple[int, Any]:
        """Status and body of the answer."""
        return await self._ask(f"GET {path} HTTP/1.1\r\nHost: {self._host}\r\n\r\n".encode())

    async def text(self, path: str) -> str:
        """An answer that isn't JSON."""
        self._writer.write(f"GET {path} HTTP/1.1\r\nHost: {self._host}\r\n\r\n".encode())
        return (await self._answer())[1].decode()

    async def _ask(self, request: bytes) -> tuple[int, Any]:
        self._writer.write(request)
        status, body = await self._answer()
        return status, orjson.loads(body)

    async def _answer(self) -> tuple[int, bytes]:
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
        return int(head[9:12]), await self._reader.readexactly(int(length))


@asynccontextmanager
async def calling(url: str) -> AsyncIterator[Caller]:
    """A connection to the service at `url`."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    try:
        yield Caller(reader, writer, parts.netloc)
    finally:
        writer.close()
        await writer.wait_closed()
