"""Declaring the topology, and comparing a live broker with it."""

import contextlib
from collections.abc import AsyncIterator, Sequence

import aio_pika
from aio_pika.abc import AbstractChannel
from aio_pika.exceptions import ChannelNotFoundEntity, ChannelPreconditionFailed

from laneway_shared.broker.link import CONNECT_TIMEOUT_S, CONNECTION_TROUBLE
from laneway_shared.errors import BrokerAwayError, TopologyMismatchError
from laneway_shared.topology import Exchange, Queue


@contextlib.asynccontextmanager
async def open_channel_once(url: str) -> AsyncIterator[AbstractChannel]:
    """A channel for a short errand.

    Raises:
        BrokerAwayError: RabbitMQ can't be reached.
    """
    try:
        connection = await aio_pika.connect(url, timeout=CONNECT_TIMEOUT_S)
    except CONNECTION_TROUBLE as error:
        raise BrokerAwayError(f"RabbitMQ can't be reached: {type(error).__name__}: {error}") from None
    async with connection:
        yield await connection.channel()


async def declare(url: str, exchanges: Sequence[Exchange], queues: Sequence[Queue]) -> None:
    """Create what is missing. What exists must agree.

    Raises:
        TopologyMismatchError: something exists with other arguments; it is left as it is.
        BrokerAwayError: RabbitMQ can't be reached.
    """
    async with open_channel_once(url) as channel:
        try:
            for exchange in exchanges:
                await channel.declare_exchange(exchange.name, exchange.kind, durable=True)
            for queue in queues:
                declared = await channel.declare_queue(queue.name, durable=True, arguments=dict(queue.arguments))
                await declared.bind(queue.exchange, queue.binding)
        except ChannelPreconditionFailed as error:
            raise TopologyMismatchError(f"RabbitMQ has it otherwise: {error}") from None


async def verify(url: str, queues: Sequence[Queue]) -> None:
    """Look at the queues without changing them.

    Raises:
        TopologyMismatchError: a queue is missing.
        BrokerAwayError: RabbitMQ can't be reached.
    """
    for queue in queues:
        async with open_channel_once(url) as channel:
            try:
                await channel.declare_queue(queue.name, passive=True)
            except ChannelNotFoundEntity:
                raise TopologyMismatchError(f"queue {queue.name} is missing; declare the topology") from None
