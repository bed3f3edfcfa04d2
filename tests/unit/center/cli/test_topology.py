import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from laneway_center.cli import topology
from laneway_center.cli.topology_differences import (
    Binding,
    Held,
    HeldExchange,
    HeldQueue,
    Kind,
    Policy,
    differences,
    services_of,
)
from laneway_shared.topology import Topology, definitions
from support.command_line import run_here
from support.source_tree import CHECKOUT

TOPOLOGY = Topology(prefix="dc3")
SERVICES = ("mqtt", "virtual")


def as_it_should_be() -> Held:
    """A broker with what the definitions file says, and what every broker has besides."""
    said = definitions(TOPOLOGY, SERVICES)
    default = [Binding(source="", destination=each["name"], key=each["name"]) for each in said["queues"]]
    return Held(
        exchanges={
            "": HeldExchange(kind="direct", durable=True),
            "amq.topic": HeldExchange(kind="topic", durable=True),
            "other.e.point_command": HeldExchange(kind="fanout", durable=False),
            **{each["name"]: HeldExchange(kind=each["type"], durable=True) for each in said["exchanges"]},
        },
        queues={
            "other.q": HeldQueue(arguments={}),
            "dc3.q.ack_listener.mqtt": HeldQueue(arguments={}),
            "dc3.q.point_command_event.center-1": HeldQueue(arguments={}, transient=True),
            **{each["name"]: HeldQueue(arguments=each["arguments"]) for each in said["queues"]},
        },
        bindings=frozenset(
            [
                *default,
                Binding(source="dc3.e.point_command", destination="dc3.q.point_command_event.center-1", key="#"),
                *(
                    Binding(source=each["source"], destination=each["destination"], key=each["routing_key"])
                    for each in said["bindings"]
                ),
            ]
        ),
    )


def changed(held: Held, name: str, **to: Any) -> Held:
    return replace(held, queues={**held.queues, name: replace(held.queues[name], **to)})


def without(named: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in named.items() if key != name}


def found(held: Held, services: Iterable[str] = SERVICES, ignored: Iterable[str] = ()) -> list[tuple[Kind, str, str]]:
    seen = differences(TOPOLOGY, tuple(services), held, tuple(ignored))
    return [(each.kind, each.name, each.says) for each in seen]


def test_what_is_imported_is_what_is_wanted() -> None:
    assert found(as_it_should_be()) == []
    assert services_of(TOPOLOGY, as_it_should_be()) == SERVICES


@pytest.mark.parametrize(
    ("has", "says"),
    [
        ({"x-message-ttl": 60_000}, "x-message-ttl is 60000; should be 30000"),
        ({"x-dead-letter-strategy": "at-most-once"}, "x-dead-letter-strategy is at-most-once; should be at-least-once"),
        ({"x-max-length": 10}, "x-max-length is 10; should be not set"),
    ],
)
def test_a_changed_argument_is_named_with_both_values(has: dict[str, Any], says: str) -> None:
    name = "dc3.q.point_command.mqtt"
    held = as_it_should_be()
    assert found(changed(held, name, arguments={**held.queues[name].arguments, **has})) == [(Kind.ARGUMENT, name, says)]


def test_a_missing_argument_is_named() -> None:
    held = as_it_should_be()
    arguments = without(held.queues["dc3.q.point_command_result"].arguments, "x-single-active-consumer")
    assert found(changed(held, "dc3.q.point_command_result", arguments=arguments)) == [
        (Kind.ARGUMENT, "dc3.q.point_command_result", "x-single-active-consumer is not set; should be true")
    ]


def test_a_classic_queue_may_say_so() -> None:
    arguments = {"x-message-ttl": 15_000, "x-queue-type": "classic"}
    assert found(changed(as_it_should_be(), "dc3.q.driver_state", arguments=arguments)) == []


def test_what_is_missing_is_named_once() -> None:
    held = as_it_should_be()
    no_queue = replace(held, queues=without(held.queues, "dc3.q.point_command_dead"))
    assert found(no_queue) == [(Kind.MISSING_QUEUE, "dc3.q.point_command_dead", "it isn't there")]
    no_exchange = replace(held, exchanges=without(held.exchanges, "dc3.e.driver_state"))
    assert found(no_exchange) == [(Kind.MISSING_EXCHANGE, "dc3.e.driver_state", "it isn't there")]
    assert found(held, ["mqtt", "virtual", "plc"]) == [
        (Kind.MISSING_QUEUE, "dc3.q.point_command.plc", "it isn't there")
    ]


def test_a_missing_binding_is_named() -> None:
    held = as_it_should_be()
    gone = Binding(source="dc3.e.point_command_dead", destination="dc3.q.point_command_dead", key="#")
    assert found(replace(held, bindings=held.bindings - {gone})) == [
        (Kind.MISSING_BINDING, "dc3.q.point_command_dead", "nothing comes from dc3.e.point_command_dead by #")
    ]


def test_what_is_too_much_is_named_unless_it_is_somebody_elses() -> None:
    held = as_it_should_be()
    held = replace(
        held,
        exchanges={**held.exchanges, "dc3.e.old": HeldExchange(kind="topic", durable=True)},
        queues={**held.queues, "dc3.q.old": HeldQueue(arguments={})},
        bindings=held.bindings
        | {
            Binding(source="dc3.e.point_command", destination="other.q", key="#"),
            Binding(source="amq.topic", destination="dc3.q.point_command_dead", key="x"),
            Binding(source="dc3.e.point_command", destination="dc3.e.old", key="#", to_queue=False),
        },
    )
    assert found(held) == [
        (Kind.EXTRA_EXCHANGE, "dc3.e.old", "it is not Laneway's"),
        (Kind.EXTRA_QUEUE, "dc3.q.old", "it is not Laneway's"),
        (Kind.EXTRA_BINDING, "dc3.q.point_command_dead", "gets what comes to amq.topic by x"),
        (Kind.EXTRA_BINDING, "dc3.e.old", "gets what comes to dc3.e.point_command by #"),
        (Kind.EXTRA_BINDING, "other.q", "gets what comes to dc3.e.point_command by #"),
    ]
    assert [name for _, name, _ in found(held, ignored=["dc3.*.old"])] == ["dc3.q.point_command_dead", "other.q"]


def test_named_services_are_all_there_may_be() -> None:
    says = "it belongs to no driver service that was named"
    assert (Kind.EXTRA_QUEUE, "dc3.q.point_command.virtual", says) in found(as_it_should_be(), ["mqtt"])


def test_a_policy_that_loses_messages_is_named_another_is_not() -> None:
    short = Policy(name="short", pattern="_dead$", says={"message-ttl": 1000, "ha-mode": "all"})
    others = [
        Policy(name="ha", pattern=".*", says={"ha-mode": "all"}),
        Policy(name="exchanges", pattern=".*", says={"expires": 1}, to_queues=False),
        Policy(name="others", pattern="^other", says={"max-length": 1}),
    ]
    assert found(replace(as_it_should_be(), policies=[short, *others])) == [
        (Kind.POLICY, "dc3.q.point_command_dead", "policy short sets message-ttl 1000")
    ]
    assert found(replace(as_it_should_be(), policies=None)) == []


def test_an_exchange_of_another_kind_is_named() -> None:
    held = as_it_should_be()
    kinds = {**held.exchanges, "dc3.e.point_command": HeldExchange(kind="fanout", durable=False)}
    assert found(replace(held, exchanges=kinds)) == [
        (Kind.ARGUMENT, "dc3.e.point_command", "it is fanout, not durable; should be topic, durable")
    ]


def test_the_definitions_file_is_the_topology() -> None:
    file = CHECKOUT / "infra/rabbitmq/definitions.json"
    assert json.loads(file.read_text("utf-8")) == definitions(Topology(), SERVICES)


def test_definitions_need_no_policy_to_keep_dead_letters() -> None:
    said = definitions(TOPOLOGY, SERVICES)
    assert said["policies"] == []
    feeding = {"dc3.q.point_command.mqtt", "dc3.q.point_command.virtual", "dc3.q.point_command_result"}
    for queue in said["queues"]:
        arguments = queue["arguments"]
        if queue["name"] in feeding:
            assert arguments["x-dead-letter-exchange"] == "dc3.e.point_command_dead"
            assert arguments["x-dead-letter-strategy"] == "at-least-once"
            assert arguments["x-overflow"] == "reject-publish"
        assert "x-dead-letter-routing-key" not in arguments
    dead = next(queue for queue in said["queues"] if queue["name"] == "dc3.q.point_command_dead")
    assert "x-message-ttl" not in dead["arguments"]


def test_export_writes_a_file_or_says_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["topology", "export", "--service", "mqtt", "--service", "virtual"]
    said = run_here(arguments, monkeypatch, capsys)
    assert (said.code, said.errors) == (0, "")
    assert json.loads(said.out) == definitions(Topology(), SERVICES)
    file = tmp_path / "definitions.json"
    said = run_here([*arguments, "--to-file", str(file), "--vhost", "plant", "--prefix", "x"], monkeypatch, capsys)
    assert (said.code, said.out) == (0, "")
    assert json.loads(file.read_bytes()) == definitions(Topology(prefix="x"), SERVICES, "plant")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["verify", "--amqp-url", "http://x"], "is no URL such as amqp://"),
        (["verify", "--management-url", "localhost:15672"], "doesn't begin with http://"),
        (["apply", "--prefix", "a.b"], "letters, digits"),
        (["apply", "--service", "a b"], "letters, digits"),
    ],
)
def test_what_makes_no_sense_is_exit_code_2(
    arguments: list[str], says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = run_here(["topology", *arguments], monkeypatch, capsys)
    assert (ended.code, ended.out) == (2, "")
    assert says in ended.reason


def test_urls_of_two_brokers_are_wrong_usage(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    missing: dict[str, str] = {}

    async def looked(*_: object, **__: object) -> dict[str, str]:
        return missing

    monkeypatch.setattr(topology, "held", lambda *_: as_it_should_be())
    monkeypatch.setattr(topology, "inspect", looked)
    arguments = ("topology", "verify", "--management-url", "http://one.test:15672", "--amqp-url", "amqp://two.test")
    assert run_here(arguments, monkeypatch, capsys).code == 0
    missing["dc3.e.point_command"] = "is missing"
    ended = run_here(arguments, monkeypatch, capsys)
    assert ended.code == 2
    assert "are of different brokers: only the first one has dc3.e.point_command" in ended.reason
