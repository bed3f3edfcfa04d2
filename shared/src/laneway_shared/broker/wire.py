"""A connection of aio-pika whose busy frames go past it: messages and confirms, straight between socket and user.

aio-pika opens connections and channels, declares, consumes, and notices errors. Per message it costs many times what
the message itself needs (a task, several queues and objects for each frame), so frames of a channel that has a
`Sink` are cut out of the stream here, and those a sink writes are put between aio-pika's.
"""

import asyncio
import time
from typing import Any, Protocol, cast

import aio_pika
from aio_pika.abc import AbstractChannel
from aiormq.abc import AbstractConnection
from aiormq.connection import SSLContextProvider, TransportFactory
from aiormq.exceptions import AMQPConnectionError
from yarl import URL

from laneway_shared.broker import frames

FRAME_MOST = 131_072  # bytes, where the broker names no limit
ALIVE_EVERY_S = 1.0  # aio-pika counts frames to see that the broker lives


class Sink(Protocol):
    """Who takes the frames of a channel."""

    methods: frozenset[int]
    """Those it takes; DELIVER and RETURN come with their content."""

    def method(self, method: int, arguments: bytes) -> None:
        """A method without content."""

    def message(self, method: int, arguments: bytes, header: bytes, body: bytes) -> None:
        """A method with its content."""

    def gone(self) -> None:
        """The channel or its connection is gone; called once, and nothing comes after it."""


class _Content:
    """A message that is still arriving."""

    __slots__ = ("arguments", "header", "left", "method", "parts")

    def __init__(self, method: int, arguments: bytes) -> None:
        self.method, self.arguments = method, arguments
        self.header = b""
        self.parts: list[bytes] = []
        self.left = 0


class Wire(asyncio.StreamReaderProtocol):
    """The stream of one connection."""

    def __init__(self, reader: asyncio.StreamReader, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(reader, loop=loop)
        self._socket: asyncio.WriteTransport | None = None
        self._sinks: dict[int, Sink] = {}
        self._arriving: dict[int, _Content] = {}
        self._rest = b""
        self._understood = True  # False: it isn't AMQP that comes; aio-pika may say so
        self._told_alive = 0.0
        self._unblocked, self._flowing = asyncio.Event(), asyncio.Event()
        self._unblocked.set()
        self._flowing.set()
        self._lost = False

    def attach(self, channel: int, sink: Sink) -> None:
        """From now on the frames of this channel that `sink` takes go there."""
        self._sinks[channel] = sink

    def write(self, data: bytes) -> None:
        """Send whole frames. Without effect when the connection is gone."""
        if self._socket is not None and not self._socket.is_closing():
            self._socket.write(data)

    @property
    def blocked(self) -> bool:
        """Whether RabbitMQ holds back what is published (memory or disk alarm)."""
        return not self._unblocked.is_set()

    @property
    def free(self) -> bool:
        """Whether the broker takes what it is sent."""
        return not self.blocked and self._flowing.is_set()

    async def until_free(self) -> None:
        """Wait until it does.

        Raises:
            ConnectionResetError: the connection is gone.
        """
        await self._unblocked.wait()
        await self._flowing.wait()
        if self._lost:
            raise ConnectionResetError("the connection was lost")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """As asyncio calls it."""
        self._socket = cast("asyncio.WriteTransport", transport)
        super().connection_made(transport)

    def pause_writing(self) -> None:
        """As asyncio calls it."""
        super().pause_writing()
        self._flowing.clear()

    def resume_writing(self) -> None:
        """As asyncio calls it."""
        super().resume_writing()
        self._flowing.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """As asyncio calls it."""
        super().connection_lost(exc)
        self._lost = True
        self._unblocked.set()  # whoever waits hears now that it is gone
        self._flowing.set()
        sinks, self._sinks = list(self._sinks.values()), {}
        for sink in sinks:
            sink.gone()

    def data_received(self, data: bytes) -> None:
        """As asyncio calls it."""
        if not self._understood:
            super().data_received(data)
            return
        data = self._rest + data if self._rest else data
        at, others = 0, []
        while len(data) - at >= frames.OVERHEAD:
            kind, channel, size = frames.ENVELOPE.unpack_from(data, at)
            if kind not in frames.KINDS:
                self._understood = False
                break
            end = at + size + frames.OVERHEAD
            if end > len(data):
                break
            if not self._taken(kind, channel, data[at + frames.ENVELOPE.size : end - 1]):
                others.append(data[at:end])
            at = end
        if self._understood:
            self._rest = data[at:]
            now = time.monotonic()
            if at and not others and now - self._told_alive > ALIVE_EVERY_S:
                others.append(frames.A_HEARTBEAT)
        else:
            others.append(data[at:])
            self._rest = b""
        if others:
            self._told_alive = time.monotonic()
            super().data_received(b"".join(others))

    def _taken(self, kind: int, channel: int, payload: bytes) -> bool:
        """Whether a sink took it."""
        sink = self._sinks.get(channel)
        if sink is None:
            if channel == 0 and kind == frames.METHOD:
                self._hear(int.from_bytes(payload[:4]))
            return False
        if kind == frames.METHOD:
            method = int.from_bytes(payload[:4])
            if method == frames.CHANNEL_CLOSE:
                del self._sinks[channel]
                sink.gone()
                return False
            if method not in sink.methods:
                return False
            if method in (frames.DELIVER, frames.RETURN):
                self._arriving[channel] = _Content(method, payload)
            else:
                sink.method(method, payload)
            return True
        content = self._arriving.get(channel)
        if content is None:
            return False
        if kind == frames.HEADER:
            content.header, content.left = payload, frames.body_size(payload)
        else:
            content.parts.append(payload)
            content.left -= len(payload)
        if content.left <= 0:
            del self._arriving[channel]
            body = content.parts[0] if len(content.parts) == 1 else b"".join(content.parts)
            sink.message(content.method, content.arguments, content.header, body)
        return True

    def _hear(self, method: int) -> None:
        """RabbitMQ holds back what is published while it is short of memory or disk."""
        if method == frames.BLOCKED:
            self._unblocked.clear()
        elif method == frames.UNBLOCKED:
            self._unblocked.set()


class _Wiring(TransportFactory):
    """Opens the sockets of one aio-pika connection."""

    def __init__(self) -> None:
        self.wire: Wire | None = None

    async def create(self, url: URL, **kwargs: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A socket with a `Wire` behind it."""
        provider: SSLContextProvider = kwargs.pop("ssl_context_provider")
        context = await provider.get_context() if url.scheme == "amqps" else None
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(loop=loop)
        try:
            transport, wire = await loop.create_connection(
                lambda: Wire(reader, loop), host=url.host or "localhost", port=url.port or 0, ssl=context, **kwargs
            )
        except OSError as error:
            raise AMQPConnectionError(*error.args) from error
        self.wire = wire
        return reader, asyncio.StreamWriter(transport, wire, reader, loop)


class WiredConnection(aio_pika.Connection):
    """An aio-pika connection that lets its busy frames be taken."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._wiring = _Wiring()
        self.kwargs["transport_factory"] = self._wiring

    @property
    def blocked(self) -> bool:
        """Whether RabbitMQ holds back what is published on it (memory or disk alarm)."""
        return self._wiring.wire is not None and self._wiring.wire.blocked

    @property
    def underlay(self) -> AbstractConnection:
        """The connection as aiormq has it.

        Raises:
            ConnectionError: it is gone.
        """
        if self.transport is None:
            raise ConnectionError("the connection is gone")
        return self.transport.connection

    def wire_of(self, channel: AbstractChannel) -> "ChannelWire":
        """What an open channel sends and receives past aio-pika.

        Raises:
            ConnectionError: the connection is gone.
        """
        wire, number = self._wiring.wire, channel.number
        if wire is None or number is None:
            raise ConnectionError("the channel is not open")
        return ChannelWire(wire, number, self.underlay.connection_tune.frame_max or FRAME_MOST)


class ChannelWire:
    """One channel of a wire. `most` is the longest frame the broker takes, in bytes."""

    __slots__ = ("_wire", "most", "number")

    def __init__(self, wire: Wire, number: int, most: int) -> None:
        self._wire, self.number, self.most = wire, number, most

    def attach(self, sink: Sink) -> None:
        """From now on the frames that `sink` takes go there."""
        self._wire.attach(self.number, sink)

    def write(self, data: bytes) -> None:
        """Send whole frames of this channel. Without effect when the connection is gone."""
        self._wire.write(data)

    @property
    def free(self) -> bool:
        """Whether the broker takes what it is sent."""
        return self._wire.free

    async def until_free(self) -> None:
        """Wait until it does.

        Raises:
            ConnectionResetError: the connection is gone.
        """
        await self._wire.until_free()
