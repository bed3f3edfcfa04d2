"""Every exchange, queue and routing key, as values. Declared, verified and exported from here only.

Names and kinds: requirement 002 §4.2. The result queue has no TTL (docs/adr/0004), the command queue's
per-message `expiration` is the start window of the attempt.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """A durable topic exchange."""

    name: str
    kind: str = "topic"


@dataclass(frozen=True, kw_only=True)
class Queue:
    """A durable queue, its arguments, and the one binding it has.

    With `exchange` "" it is bound to nothing but the default exchange, as every queue is.
    """

    name: str
    exchange: str
    binding: str
    arguments: Mapping[str, str | int | bool] = field(default_factory=dict)


COMMAND_QUEUE_TTL_MS = 30_000
COMMAND_DELIVERY_LIMIT = 5
NO_DELIVERY_LIMIT = 1_000_000
"""Practically none. -1 is no way to say it: RabbitMQ 3.10 takes it as "gone at the first return"; 4.x reads
an absent limit as 20."""
HEARTBEAT_TTL_MS = 15_000


@dataclass(frozen=True, kw_only=True)
class Topology:
    """All names under one prefix (default `dc3`)."""

    prefix: str = "dc3"

    @property
    def command_exchange(self) -> str:
        """Where attempts are published."""
        return f"{self.prefix}.e.point_command"

    @property
    def result_exchange(self) -> str:
        """Where results, letters and absence checks are published: the one road back."""
        return f"{self.prefix}.e.point_command_result"

    @property
    def dead_exchange(self) -> str:
        """Where the broker sends what it gave up on, and drivers what they can't read."""
        return f"{self.prefix}.e.point_command_dead"

    @property
    def state_exchange(self) -> str:
        """Where heartbeats are published."""
        return f"{self.prefix}.e.driver_state"

    @property
    def result_queue(self) -> str:
        """The one road back."""
        return f"{self.prefix}.q.point_command_result"

    @property
    def dead_queue(self) -> str:
        """Dead letters of commands and results."""
        return f"{self.prefix}.q.point_command_dead"

    @property
    def state_queue(self) -> str:
        """Heartbeats on their way to the center."""
        return f"{self.prefix}.q.driver_state"

    def command_queue(self, service: str) -> str:
        """The queue that all instances of one driver service share."""
        return f"{self.prefix}.q.point_command.{service}"

    def command_key(self, service: str) -> str:
        """Routing key of an attempt."""
        return f"{self.prefix}.r.point_command.{service}"

    def result_key(self, service: str) -> str:
        """Routing key of a result; `service` says who sends it."""
        return f"{self.prefix}.r.point_command_result.{service}"

    def state_key(self, service: str) -> str:
        """Routing key of a heartbeat."""
        return f"{self.prefix}.r.driver_state.{service}"

    def listener_claim_queue(self, service: str) -> str:
        """The exclusive consumer on this queue is the active ack-listener of its service."""
        return f"{self.prefix}.q.ack_listener.{service}"

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """All exchanges."""
        names = (self.command_exchange, self.result_exchange, self.dead_exchange, self.state_exchange)
        return tuple(Exchange(name=name) for name in names)

    def command_queue_of(self, service: str) -> Queue:
        """The command queue of a driver service, in full."""
        return Queue(
            name=self.command_queue(service),
            exchange=self.command_exchange,
            binding=self.command_key(service),
            arguments={
                "x-queue-type": "quorum",
                "x-message-ttl": COMMAND_QUEUE_TTL_MS,
                "x-delivery-limit": COMMAND_DELIVERY_LIMIT,
                "x-dead-letter-exchange": self.dead_exchange,
                "x-dead-letter-strategy": "at-least-once",
                "x-overflow": "reject-publish",
            },
        )

    @property
    def center_queues(self) -> tuple[Queue, ...]:
        """The queues the center consumes."""
        return (
            Queue(
                name=self.result_queue,
                exchange=self.result_exchange,
                binding=f"{self.prefix}.r.point_command_result.#",
                # reject-publish is what at-least-once dead lettering asks for; without a length limit it never acts
                arguments={
                    "x-queue-type": "quorum",
                    "x-single-active-consumer": True,
                    "x-delivery-limit": NO_DELIVERY_LIMIT,
                    "x-dead-letter-exchange": self.dead_exchange,
                    "x-dead-letter-strategy": "at-least-once",
                    "x-overflow": "reject-publish",
                },
            ),
            Queue(
                name=self.dead_queue,
                exchange=self.dead_exchange,
                binding="#",
                arguments={"x-queue-type": "quorum", "x-delivery-limit": NO_DELIVERY_LIMIT},
            ),
            Queue(
                name=self.state_queue,
                exchange=self.state_exchange,
                binding=f"{self.prefix}.r.driver_state.#",
                arguments={"x-message-ttl": HEARTBEAT_TTL_MS},
            ),
        )

    def queues(self, services: Sequence[str] = ()) -> tuple[Queue, ...]:
        """All queues, with the command queues of these driver services."""
        return (*self.center_queues, *(self.command_queue_of(service) for service in services))

    def listener_claim_of(self, service: str) -> Queue:
        """The queue of a listener's claim, in full: nothing is sent to it."""
        name = self.listener_claim_queue(service)
        return Queue(name=name, exchange="", binding=name)


def definitions(topology: Topology, services: Sequence[str] = (), vhost: str = "/") -> dict[str, Any]:
    """Exchanges, queues and bindings as RabbitMQ imports them (`rabbitmqctl import_definitions`, management API).

    Everything a queue needs stands in its own arguments, dead-lettering too: no policy, which somebody could drop
    or let another one win over. Users and permissions aren't in it.
    """
    queues = topology.queues(services)
    kept = {"vhost": vhost, "durable": True, "auto_delete": False}
    return {
        "vhosts": [{"name": vhost}],
        "policies": [],
        "exchanges": [
            {"name": each.name, **kept, "type": each.kind, "internal": False, "arguments": {}}
            for each in topology.exchanges
        ],
        "queues": [{"name": each.name, **kept, "arguments": dict(each.arguments)} for each in queues],
        "bindings": [
            {
                "source": each.exchange,
                "vhost": vhost,
                "destination": each.name,
                "destination_type": "queue",
                "routing_key": each.binding,
                "arguments": {},
            }
            for each in queues
        ],
    }
