"""Frames of a channel with a sink go there, everything else to aio-pika, however the bytes come."""

import asyncio
from typing import Any

import pamqp.frame
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import body, commands, header

from laneway_shared.broker import frames
from laneway_shared.broker.wire import Wire


class Seen:
    methods = frozenset({frames.DELIVER, frames.ACK})

    def __init__(self) -> None:
        self.got: list[Any] = []

    def method(self, _method: int, arguments: bytes) -> None:
        self.got.append(frames.confirmed(arguments))

    def message(self, _method: int, arguments: bytes, head: bytes, content: bytes) -> None:
        self.got.append((frames.delivered(arguments)[0], frames.properties(head).get("message_id"), content))

    def gone(self) -> None:
        self.got.append("gone")


class Transport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.written = b""

    def write(self, data: Any) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return False


class Stage:
    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.reader = asyncio.StreamReader(loop=self.loop)
        self.wire = Wire(self.reader, self.loop)
        self.transport = Transport()
        self.wire.connection_made(self.transport)
        self.seen = Seen()
        self.wire.attach(3, self.seen)

    def come(self, raw: bytes, *cuts: int) -> None:
        places = sorted({cut % (len(raw) + 1) for cut in cuts})
        for start, end in zip([0, *places], [*places, len(raw)], strict=True):
            self.wire.data_received(raw[start:end])

    def left_over(self) -> bytes:
        self.reader.feed_eof()
        left = self.loop.run_until_complete(self.reader.read())
        self.loop.close()
        return left


def delivery(tag: int, content: bytes, channel: int = 3, most: int = 100) -> bytes:
    said = commands.Basic.Properties(message_id=f"m{tag}")
    parts: list[Any] = [
        commands.Basic.Deliver("ctag", tag, exchange="e", routing_key="k"),
        header.ContentHeader(0, len(content), said),
    ]
    parts += [body.ContentBody(content[at : at + most]) for at in range(0, len(content), most)]
    return b"".join(pamqp.frame.marshal(part, channel) for part in parts)


MINE = [
    (delivery(1, b"first"), (1, "m1", b"first")),
    (delivery(2, b""), (2, "m2", b"")),
    (delivery(3, b"z" * 250), (3, "m3", b"z" * 250)),
    (pamqp.frame.marshal(commands.Basic.Ack(9, multiple=True), 3), (9, True)),
]
OTHERS = [
    pamqp.frame.marshal(commands.Basic.ConsumeOk("ctag"), 3),
    pamqp.frame.marshal(commands.Basic.CancelOk("ctag"), 3),
    delivery(4, b"another channel's", channel=2),
    frames.A_HEARTBEAT,
]


@given(
    order=st.lists(st.one_of(st.sampled_from(MINE), st.sampled_from(OTHERS)), max_size=12),
    cuts=st.lists(st.integers(0, 2000), max_size=8),
)
def test_each_frame_goes_where_it_belongs(order: list[Any], cuts: list[int]) -> None:
    stage = Stage()
    stage.come(b"".join(each[0] if isinstance(each, tuple) else each for each in order), *cuts)
    assert stage.seen.got == [each[1] for each in order if isinstance(each, tuple)]
    others = b"".join(each for each in order if isinstance(each, bytes))
    assert stage.left_over().replace(frames.A_HEARTBEAT, b"") == others.replace(frames.A_HEARTBEAT, b"")


def test_while_only_messages_come_aio_pika_hears_that_the_broker_lives() -> None:
    stage = Stage()
    stage.come(MINE[0][0])
    stage.come(MINE[0][0])
    assert stage.left_over() == frames.A_HEARTBEAT, "once a second is enough"


def test_what_is_not_amqp_is_left_to_aio_pika() -> None:
    stage = Stage()
    stage.come(MINE[0][0] + b"AMQP\x00\x00\x09\x01" + MINE[0][0], 500)
    assert len(stage.seen.got) == 1
    assert stage.left_over().replace(frames.A_HEARTBEAT, b"") == b"AMQP\x00\x00\x09\x01" + MINE[0][0]


def test_the_end_of_a_channel_is_told_before_anyone_writes_to_it_again() -> None:
    stage = Stage()
    close = pamqp.frame.marshal(commands.Channel.Close(404, "none", 60, 40), 3)
    stage.come(close + MINE[0][0])
    assert stage.seen.got == ["gone"]
    assert stage.left_over() == close + MINE[0][0]


def test_the_end_of_a_connection_is_told_once() -> None:
    stage = Stage()
    stage.wire.connection_lost(None)
    assert stage.seen.got == ["gone"]
    stage.left_over()


async def test_who_waits_for_room_hears_of_it() -> None:
    wire = Wire(asyncio.StreamReader(), asyncio.get_running_loop())
    wire.connection_made(Transport())
    blocked = pamqp.frame.marshal(commands.Connection.Blocked("memory"), 0)
    wire.data_received(blocked)
    assert not wire.free
    waiting = asyncio.ensure_future(wire.until_free())
    await asyncio.sleep(0)
    assert not waiting.done()
    wire.data_received(pamqp.frame.marshal(commands.Connection.Unblocked(), 0))
    await waiting
    wire.pause_writing()
    assert not wire.free
    waiting = asyncio.ensure_future(wire.until_free())
    await asyncio.sleep(0)
    wire.connection_lost(None)
    with pytest.raises(ConnectionResetError):
        await waiting
