"""Looking at a broker over AMQP alone: whether what is named exists, and is declared as it should be."""

from collections.abc import Sequence
from typing import Any

import aio_pika
from aio_pika.abc import AbstractConnection
from aio_pika.exceptions import ChannelNotFoundEntity, ChannelPreconditionFailed

from laneway_shared.broker.link import CONNECT_TIMEOUT_S, CONNECTION_TROUBLE
from laneway_shared.errors import BrokerAwayError
from laneway_shared.topology import Exchange, Queue

MISSING = "is missing"


async def inspect(
    url: str, exchanges: Sequence[Exchange], queues: Sequence[Queue], *, names_only: bool = False
) -> dict[str, str]:
    """What is wrong, by the name of the exchange or queue: `MISSING`, or RabbitMQ's words about an argument.

    `names_only`: only what is missing, for which a user needs no right to configure. Bindings, and what exists
    besides, can't be asked for over AMQP. Nothing is created.

    Raises:
        BrokerAwayError: RabbitMQ can't be reached, or went away meanwhile.
    """
    wrong: dict[str, str] = {}
    try:
        async with await aio_pika.connect(url, timeout=CONNECT_TIMEOUT_S) as connection:
            everything: list[Exchange | Queue] = [*exchanges, *queues]
            for each in everything:
                if says := await _look(connection, each, names_only=names_only):
                    wrong[each.name] = says
    except CONNECTION_TROUBLE as error:
        raise BrokerAwayError(f"RabbitMQ can't be reached: {type(error).__name__}: {error}") from None
    return wrong


async def _look(connection: AbstractConnection, wanted: Exchange | Queue, *, names_only: bool) -> str | None:
    for passive in (True,) if names_only else (True, False):  # passive first: the other one creates what isn't there
        channel = await connection.channel()  # RabbitMQ closes it with its refusal: one for each question
        try:
            if isinstance(wanted, Queue):
                arguments: dict[str, Any] = dict(wanted.arguments)
                await channel.declare_queue(wanted.name, durable=True, arguments=arguments, passive=passive)
            else:
                await channel.declare_exchange(wanted.name, wanted.kind, durable=True, passive=passive)
        except ChannelNotFoundEntity:
            return MISSING
        except ChannelPreconditionFailed as error:
            return f"is declared otherwise: {_words(error)}"
        await channel.close()
    return None


def _words(error: Exception) -> str:
    said = str(error)
    return said.partition("inequivalent ")[2] or said
