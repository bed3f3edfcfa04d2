"""Dead letters by hand: taken off their queue while no center does it, and given back to their exchange later."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import aio_pika
from aio_pika.abc import AbstractExchange, AbstractIncomingMessage, DeliveryMode, HeadersType
from aio_pika.exceptions import ChannelNotFoundEntity, DeliveryError, PublishError

from laneway_shared.broker.link import CONNECT_TIMEOUT_S, CONNECTION_TROUBLE
from laneway_shared.errors import BrokerAwayError, LanewayError, TopologyMismatchError

DELIVERY_COUNT = "x-delivery-count"  # set by RabbitMQ on what it delivers again: not the letter's own
BATCH = 500  # letters on disk before they are acked, at most
WINDOW = 100  # letters given back at once
IDLE_S = 0.5  # without a letter until the queue is asked whether it is empty
CONFIRM_TIMEOUT_S = 10.0
KEPT = ("content_type", "content_encoding", "priority", "correlation_id", "reply_to", "type", "app_id")
"""Properties that say something about the letter and are given back as they were. Not among them: `expiration` would
let it vanish from the dead queue, `user_id` would be refused from anybody else; it is always persistent."""


class DeadQueueInUseError(LanewayError):
    """A center takes dead letters off the queue and stores them."""

    code = "DEAD_QUEUE_IN_USE"


@dataclass(frozen=True, kw_only=True)
class RawLetter:
    """A dead letter as RabbitMQ holds it."""

    body: bytes
    routing_key: str
    exchange: str = ""
    redelivered: bool = False
    message_id: str | None = None
    timestamp: datetime | None = None
    headers: Mapping[str, Any] = field(default_factory=dict)
    properties: Mapping[str, Any] = field(default_factory=dict)  # those of `KEPT` that it has


async def take_letters(
    url: str,
    queue_name: str,
    keep: Callable[[Sequence[RawLetter]], None],
    stop: asyncio.Event,
    *,
    waiting: Callable[[int], None],
    force: bool,
) -> None:
    """Take letters off the queue until it is empty or `stop` is set: each is acked after `keep` has returned.

    `waiting` is told how many there are at the beginning. With `force` also while a center consumes the queue.

    Raises:
        DeadQueueInUseError: a center does.
        TopologyMismatchError: there is no such queue.
        BrokerAwayError: RabbitMQ can't be reached, or went away. What was kept but not acked comes again, redelivered.
    """
    try:
        async with await aio_pika.connect(url, timeout=CONNECT_TIMEOUT_S) as connection:
            channel = await connection.channel(publisher_confirms=False)
            await channel.set_qos(prefetch_count=BATCH)
            queue = await channel.declare_queue(queue_name, passive=True)
            there = queue.declaration_result
            if there.consumer_count and not force:
                raise DeadQueueInUseError(f"{queue_name} is being consumed: a running center stores its letters")
            waiting(there.message_count or 0)
            arrived: asyncio.Queue[AbstractIncomingMessage] = asyncio.Queue()
            await queue.consume(arrived.put)
            while not stop.is_set():
                batch = await _next_batch(arrived)
                if batch:
                    keep([_raw(message) for message in batch])
                    await batch[-1].ack(multiple=True)
                elif not (await channel.declare_queue(queue_name, passive=True)).declaration_result.message_count:
                    return
    except ChannelNotFoundEntity:
        raise TopologyMismatchError(f"there is no queue {queue_name}") from None
    except CONNECTION_TROUBLE as error:
        raise BrokerAwayError(f"RabbitMQ can't be reached: {type(error).__name__}: {error}") from None


async def _next_batch(arrived: asyncio.Queue[AbstractIncomingMessage]) -> list[AbstractIncomingMessage]:
    try:
        batch = [await asyncio.wait_for(arrived.get(), IDLE_S)]
    except TimeoutError:
        return []
    while len(batch) < BATCH and not arrived.empty():
        batch.append(arrived.get_nowait())
    return batch


def _raw(message: AbstractIncomingMessage) -> RawLetter:
    return RawLetter(
        body=message.body,
        routing_key=message.routing_key or "",
        exchange=message.exchange or "",
        redelivered=bool(message.redelivered),
        message_id=message.message_id,
        timestamp=message.timestamp,
        headers={name: value for name, value in (message.headers or {}).items() if name != DELIVERY_COUNT},
        properties={name: value for name in KEPT if (value := getattr(message, name)) is not None},
    )


async def give_letters_back(
    url: str, exchange_name: str, letters: Iterable[tuple[int, RawLetter]], stop: asyncio.Event
) -> AsyncGenerator[list[int], None]:
    """Publish numbered letters to the dead exchange; yields the numbers of those that RabbitMQ has confirmed.

    Raises:
        TopologyMismatchError: the exchange is missing, or no queue is bound to it.
        BrokerAwayError: some weren't confirmed: they may be there or not. What was yielded is.
    """
    try:
        async with await aio_pika.connect(url, timeout=CONNECT_TIMEOUT_S) as connection:
            channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
            exchange = await channel.get_exchange(exchange_name, ensure=True)
            for window in _windows(letters):
                outcomes = await asyncio.gather(
                    *(_give(exchange, letter) for _, letter in window), return_exceptions=True
                )
                given = [n for (n, _), outcome in zip(window, outcomes, strict=True) if outcome is None]
                if given:
                    yield given
                for outcome in outcomes:
                    if outcome is not None:
                        raise outcome
                if stop.is_set():
                    return
    except ChannelNotFoundEntity:
        raise TopologyMismatchError(f"there is no exchange {exchange_name}") from None
    except PublishError:
        raise TopologyMismatchError(f"no queue is bound to {exchange_name}; nothing takes the letters") from None
    except DeliveryError:
        raise BrokerAwayError("RabbitMQ refused some letters; it may be short of disk") from None
    except CONNECTION_TROUBLE as error:
        raise BrokerAwayError(f"RabbitMQ can't be reached: {type(error).__name__}: {error}") from None


def _windows(letters: Iterable[tuple[int, RawLetter]]) -> Iterable[list[tuple[int, RawLetter]]]:
    """No message id twice in one: RabbitMQ's returns are told apart by it."""
    window: list[tuple[int, RawLetter]] = []
    ids: set[str | None] = set()
    for n, letter in letters:
        if len(window) == WINDOW or letter.message_id in ids:
            yield window
            window, ids = [], set()
        window.append((n, letter))
        ids.add(letter.message_id)
    if window:
        yield window


async def _give(exchange: AbstractExchange, letter: RawLetter) -> None:
    headers: HeadersType = dict(letter.headers)
    message = aio_pika.Message(
        letter.body,
        headers=headers,
        delivery_mode=DeliveryMode.PERSISTENT,
        message_id=letter.message_id,
        timestamp=letter.timestamp,
        **letter.properties,
    )
    await exchange.publish(message, letter.routing_key, mandatory=True, timeout=CONFIRM_TIMEOUT_S)
