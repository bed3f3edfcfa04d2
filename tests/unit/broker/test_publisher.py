"""Publishing against a channel that is only played: what it is sent, and what its confirms are taken for."""

import asyncio
import struct
from typing import Any, cast

import pytest

from laneway_shared.broker import Outcome, Outgoing, Publisher, frames
from laneway_shared.broker.publisher import _Confirms
from laneway_shared.broker.wire import ChannelWire


class Channel:
    """Takes nothing until it is freed, and confirms at once what it is given."""

    number, most = 1, 131_072

    def __init__(self) -> None:
        self.sink: Any = None
        self.written: list[bytes] = []
        self.tags = 0
        self._freed = asyncio.Event()

    @property
    def free(self) -> bool:
        return self._freed.is_set()

    def let_go(self) -> None:
        self._freed.set()

    async def until_free(self) -> None:
        await self._freed.wait()

    def attach(self, sink: Any) -> None:
        self.sink = sink

    def write(self, data: bytes) -> None:
        self.written.append(data)
        for _ in range(data.count(struct.pack(">I", frames.PUBLISH))):
            self.tags += 1
            arguments = struct.pack(">IQB", frames.ACK, self.tags, 0)
            asyncio.get_running_loop().call_soon(self.sink.method, frames.ACK, arguments)


@pytest.fixture
async def channel() -> Channel:
    return Channel()


@pytest.fixture
async def publisher(channel: Channel) -> Publisher:
    made = Publisher("amqp://nobody", "played")
    made._confirms = _Confirms(cast("ChannelWire", channel))
    return made


def message(**fields: Any) -> Outgoing:
    return Outgoing(exchange="e", routing_key="k", body=b"[]", **fields)


def time_to_live(written: bytes) -> int:
    """Of the one message that was written, in ms."""
    method_size = frames.ENVELOPE.unpack_from(written)[2]
    header_at = frames.OVERHEAD + method_size
    size = frames.ENVELOPE.unpack_from(written, header_at)[2]
    header = written[header_at + frames.ENVELOPE.size :][:size]
    return int(frames.properties(header)["expiration"])


async def test_a_time_to_live_runs_while_rabbitmq_takes_nothing(channel: Channel, publisher: Publisher) -> None:
    publishing = asyncio.ensure_future(publisher.publish([message(ttl_ms=60_000)], timeout_s=30))
    await asyncio.sleep(0.3)  # so long it is held back: this is the time that is measured
    channel.let_go()
    assert await publishing == [Outcome.CONFIRMED]
    assert 1 <= time_to_live(channel.written[0]) <= 60_000 - 290
    assert await publisher.publish([message(ttl_ms=60_000)]) == [Outcome.CONFIRMED]
    assert time_to_live(channel.written[1]) > 60_000 - 290


async def test_a_message_that_cant_be_built_puts_no_confirm_out_of_step(channel: Channel, publisher: Publisher) -> None:
    channel.let_go()
    with pytest.raises(ValueError, match="256"):
        await publisher.publish([message(), message(correlation_id="x" * 300)])
    assert channel.written == [], "nothing of it is sent"
    for _ in range(2):
        assert await publisher.publish([message(), message()], timeout_s=5) == [Outcome.CONFIRMED] * 2
