"""What a live broker has otherwise than the topology says."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any

from laneway_shared.topology import Queue, Topology

CHANGING = frozenset(
    {
        "message-ttl",
        "expires",
        "max-length",
        "max-length-bytes",
        "max-in-memory-length",
        "overflow",
        "dead-letter-exchange",
        "dead-letter-routing-key",
        "dead-letter-strategy",
        "delivery-limit",
    }
)
"""What a policy may not say about a queue of ours: it decides which messages are lost, and where they go."""


class Kind(StrEnum):
    """Sorts of differences."""

    MISSING_EXCHANGE = "missing exchange"
    MISSING_QUEUE = "missing queue"
    MISSING_BINDING = "missing binding"
    ARGUMENT = "changed argument"
    POLICY = "policy"
    EXTRA_EXCHANGE = "extra exchange"
    EXTRA_QUEUE = "extra queue"
    EXTRA_BINDING = "extra binding"


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One thing that is otherwise."""

    kind: Kind
    name: str
    says: str


@dataclass(frozen=True, kw_only=True)
class HeldExchange:
    """An exchange as the broker has it. `transient`: it goes away with its last binding."""

    kind: str
    durable: bool
    transient: bool = False


@dataclass(frozen=True, kw_only=True)
class HeldQueue:
    """A queue as the broker has it. `transient`: it goes away with a connection or its last consumer."""

    arguments: Mapping[str, Any]
    durable: bool = True
    transient: bool = False


@dataclass(frozen=True, kw_only=True)
class Policy:
    """A policy for names that match a regular expression; several may match, and the broker takes one."""

    name: str
    pattern: str
    says: Mapping[str, Any]
    to_queues: bool = True


@dataclass(frozen=True, kw_only=True)
class Binding:
    """A binding. `to_queue` False: to an exchange."""

    source: str
    destination: str
    key: str
    to_queue: bool = True

    def __str__(self) -> str:
        return f"{self.source} -> {self.destination}, key {self.key}"


@dataclass(frozen=True, kw_only=True)
class Held:
    """Everything in a virtual host. `policies` None: this user may not read them."""

    exchanges: Mapping[str, HeldExchange]
    queues: Mapping[str, HeldQueue]
    bindings: frozenset[Binding]
    policies: Sequence[Policy] | None = ()


def services_of(topology: Topology, held: Held) -> tuple[str, ...]:
    """The driver services that have a command queue there."""
    start = topology.command_queue("")
    return tuple(sorted(name.removeprefix(start) for name in held.queues if name.startswith(start)))


def differences(
    topology: Topology, services: Sequence[str], held: Held, ignored: Sequence[str] = ()
) -> list[Difference]:
    """Compare. `services` have to have their queue; `ignored`: patterns (`*`) of names that are somebody else's.

    What is exclusive or deletes itself comes and goes with a process: it is never too much.
    """
    wanted = {queue.name: queue for queue in topology.queues(services)}
    start = topology.listener_claim_queue("")
    claims = (topology.listener_claim_of(name[len(start) :]) for name in held.queues if name.startswith(start))
    wanted |= {claim.name: claim for claim in claims}
    found = [
        *_exchanges(topology, held),
        *(fault for queue in wanted.values() for fault in _queue(queue, held)),
        *_extra_queues(topology, wanted, held),
        *_bindings(topology, wanted, held),
        *_policies(wanted, held),
    ]
    return [each for each in found if not any(fnmatchcase(each.name, pattern) for pattern in ignored)]


def _exchanges(topology: Topology, held: Held) -> Iterator[Difference]:
    wanted = {exchange.name: exchange for exchange in topology.exchanges}
    for name, exchange in wanted.items():
        there = held.exchanges.get(name)
        if there is None:
            yield Difference(kind=Kind.MISSING_EXCHANGE, name=name, says="it isn't there")
        elif (there.kind, there.durable, there.transient) != (exchange.kind, True, False):
            what = f"{there.kind}, {'durable' if there.durable else 'not durable'}" + (
                ", deletes itself" if there.transient else ""
            )
            yield Difference(kind=Kind.ARGUMENT, name=name, says=f"it is {what}; should be {exchange.kind}, durable")
    for name, there in sorted(held.exchanges.items()):
        if name.startswith(f"{topology.prefix}.") and name not in wanted and not there.transient:
            yield Difference(kind=Kind.EXTRA_EXCHANGE, name=name, says="it is not Laneway's")


def _queue(wanted: Queue, held: Held) -> Iterator[Difference]:
    there = held.queues.get(wanted.name)
    if there is None:
        yield Difference(kind=Kind.MISSING_QUEUE, name=wanted.name, says="it isn't there")
        return
    if not there.durable or there.transient:
        yield Difference(kind=Kind.ARGUMENT, name=wanted.name, says="it should be durable, and stay by itself")
    # a classic queue may be declared with its type or without
    is_ = {key: value for key, value in there.arguments.items() if (key, value) != ("x-queue-type", "classic")}
    for key in sorted(wanted.arguments.keys() | is_.keys()):
        should, has = wanted.arguments.get(key), is_.get(key)
        if should != has:
            says = f"{key} is {_said(has)}; should be {_said(should)}"
            yield Difference(kind=Kind.ARGUMENT, name=wanted.name, says=says)


def _policies(wanted: Mapping[str, Queue], held: Held) -> Iterator[Difference]:
    """Also those that another one outranks now: a change of priorities is all it takes."""
    for policy in held.policies or ():
        terms = ", ".join(f"{key} {value}" for key, value in sorted(policy.says.items()) if key in CHANGING)
        if not terms or not policy.to_queues:
            continue
        for name in wanted:
            if re.search(policy.pattern, name):
                yield Difference(kind=Kind.POLICY, name=name, says=f"policy {policy.name} sets {terms}")


def _said(value: object) -> str:
    if value is None:
        return "not set"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _extra_queues(topology: Topology, wanted: Mapping[str, Queue], held: Held) -> Iterator[Difference]:
    for name, there in sorted(held.queues.items()):
        if name.startswith(f"{topology.prefix}.") and name not in wanted and not there.transient:
            is_service = name.startswith(topology.command_queue(""))
            says = "it belongs to no driver service that was named" if is_service else "it is not Laneway's"
            yield Difference(kind=Kind.EXTRA_QUEUE, name=name, says=says)


def _bindings(topology: Topology, wanted: Mapping[str, Queue], held: Held) -> Iterator[Difference]:
    needed = {
        Binding(source=queue.exchange, destination=queue.name, key=queue.binding)
        for queue in wanted.values()
        if queue.exchange
    }
    for binding in sorted(needed - held.bindings, key=str):
        if binding.destination in held.queues and binding.source in held.exchanges:  # else that is the news
            says = f"nothing comes from {binding.source} by {binding.key}"
            yield Difference(kind=Kind.MISSING_BINDING, name=binding.destination, says=says)
    ours = {exchange.name for exchange in topology.exchanges}
    for binding in sorted(held.bindings - needed, key=str):
        there = held.queues.get(binding.destination) if binding.to_queue else None
        # every queue is bound to the default exchange ""
        if not binding.source or (there is not None and there.transient):
            continue
        if binding.source in ours or binding.destination in wanted:
            says = f"gets what comes to {binding.source} by {binding.key}"
            yield Difference(kind=Kind.EXTRA_BINDING, name=binding.destination, says=says)
