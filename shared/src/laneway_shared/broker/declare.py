"""Declaring the topology."""

from collections.abc import Sequence

import aio_pika
from aio_pika.exceptions import ChannelPreconditionFailed

from laneway_shared.broker.link import CONNECT_TIMEOUT_S, CONNECTION_TROUBLE
from laneway_shared.errors import BrokerAwayError, TopologyMismatchError
from laneway_shared.topology import Exchange, Queue


async def declare(url: str, exchanges: Sequence[Exchange], queues: Sequence[Queue]) -> None:
    """Create what is missing. What exists must agree.

    Raises:
        TopologyMismatchError: something exists with other arguments; it is left as it is.
        BrokerAwayError: RabbitMQ can't be reached, or went away meanwhile.
    """
    try:
        async with await aio_pika.connect(url, timeout=CONNECT_TIMEOUT_S) as connection:
            channel = await connection.channel()
            for exchange in exchanges:
                await channel.declare_exchange(exchange.name, exchange.kind, durable=True)
            for queue in queues:
                declared = await channel.declare_queue(queue.name, durable=True, arguments=dict(queue.arguments))
                await declared.bind(queue.exchange, queue.binding)
    except ChannelPreconditionFailed as error:
        raise TopologyMismatchError(f"RabbitMQ has it otherwise: {error}") from None
    except CONNECTION_TROUBLE as error:
        raise BrokerAwayError(f"RabbitMQ can't be reached: {type(error).__name__}: {error}") from None
