"""RabbitMQ, as Laneway uses it. The only package that knows aio-pika.

A link keeps one connection alive and rebuilds what it carries after a loss; publishing and consuming use
separate links, because a memory alarm blocks all writes of a publishing connection, acks too.
"""

from laneway_shared.broker.claim import Claim
from laneway_shared.broker.consumer import Consumer, Delivery, ack_all
from laneway_shared.broker.declare import declare
from laneway_shared.broker.inspect import inspect
from laneway_shared.broker.link import Link
from laneway_shared.broker.publisher import Outcome, Outgoing, Publisher, Publishing

__all__ = [
    "Claim",
    "Consumer",
    "Delivery",
    "Link",
    "Outcome",
    "Outgoing",
    "Publisher",
    "Publishing",
    "ack_all",
    "declare",
    "inspect",
]
