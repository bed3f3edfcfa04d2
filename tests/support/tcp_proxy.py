"""A TCP proxy that loses its connections when told to: a broken network between a service and a server."""

import asyncio
import contextlib
from collections.abc import AsyncIterator


class TcpProxy:
    """Forwards to a server; `cut` resets all connections, and new ones are refused until `mend`."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._open: set[asyncio.StreamWriter] = set()
        self._forwarding: set[asyncio.Task[None]] = set()
        self._refusing = False
        self.delay_s = 0.0  # each chunk is held up so long
        self.port = 0

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["TcpProxy"]:
        """Listen on a free port of this machine."""
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        async with server:
            try:
                yield self
            finally:
                self.cut()
                if self._forwarding:
                    await asyncio.wait(self._forwarding)

    def cut(self) -> None:
        """Lose all connections, and refuse new ones."""
        self._refusing = True
        for writer in self._open:
            writer.transport.abort()

    def mend(self) -> None:
        """Accept connections again."""
        self._refusing = False

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._forward(reader, writer))
        self._forwarding.add(task)
        task.add_done_callback(self._forwarding.discard)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refusing:
            writer.transport.abort()
            return
        try:
            server_reader, server_writer = await asyncio.open_connection(*self._target)
        except OSError:  # the server is away: so is the way to it
            writer.transport.abort()
            return
        self._open |= {writer, server_writer}
        try:
            async with asyncio.TaskGroup() as ways:
                ways.create_task(self._pump(reader, server_writer))
                ways.create_task(self._pump(server_reader, writer))
        finally:
            self._open -= {writer, server_writer}
            for end in (writer, server_writer):
                end.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                writer.write(data)
                await writer.drain()
        writer.transport.abort()
