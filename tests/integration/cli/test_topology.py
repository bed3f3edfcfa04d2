"""`laneway topology` on a real RabbitMQ."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from laneway_local.ports import free_port
from laneway_local.stack import AMQP_URL, MANAGEMENT_URL, Stack
from support.command_line import Ended, laneway, on_terminal


class Broker:
    """RabbitMQ, changed behind Laneway's back."""

    def __init__(self, url: str, prefix: str) -> None:
        self.client, self.prefix = httpx.Client(base_url=f"{url}/api/", trust_env=False), prefix

    def put(self, path: str, **body: Any) -> None:
        self.client.put(path, json=body).raise_for_status()

    def delete(self, path: str) -> None:
        self.client.delete(path).raise_for_status()

    def load(self, file: Path) -> None:
        self.client.post("definitions", json=json.loads(file.read_bytes())).raise_for_status()

    def wipe(self) -> None:
        for kind in ("queues", "exchanges"):
            for each in self.client.get(f"{kind}/%2F").raise_for_status().json():
                if each["name"].startswith(f"{self.prefix}."):
                    self.delete(f"{kind}/%2F/{each['name']}")


@pytest.fixture
def broker(infra: Stack, prefix: str) -> Iterator[Broker]:
    made = Broker(infra.urls[MANAGEMENT_URL], prefix)
    yield made
    made.wipe()
    made.client.close()


@pytest.fixture
def names(infra: Stack, prefix: str) -> dict[str, str]:
    return {name: infra.urls[name] for name in (AMQP_URL, MANAGEMENT_URL)} | {"LANEWAY_TOPOLOGY_PREFIX": prefix}


def differences(ended: Ended) -> set[tuple[str, str]]:
    return {(each["kind"], each["name"]) for each in json.loads(ended.out)["differences"]}


async def test_applied_is_verified_and_each_difference_is_named(
    names: dict[str, str], prefix: str, broker: Broker
) -> None:
    empty = await laneway("topology", "verify", "--output", "json", **names)
    assert empty.code == 1
    assert {kind for kind, _ in differences(empty)} == {"missing queue", "missing exchange"}
    applied = await laneway("topology", "apply", "--service", "mqtt", **names)
    assert (applied.code, applied.out.splitlines()[0]) == (0, "There: 4 exchanges, 4 queues with a binding each.")
    assert f"Created: {prefix}.e." in applied.out
    again = await laneway("topology", "apply", "--service", "mqtt", **names)
    assert (again.code, again.out.splitlines()[1]) == (0, "No exchange and no queue was missing.")
    assert "--service" not in again.out
    assert "were not looked at: name the services with --service" in (await laneway("topology", "apply", **names)).out
    sound = await laneway("topology", "verify", **names)
    assert (sound.code, sound.errors) == (0, "")
    assert sound.out == "As it should be: 4 exchanges, 4 queues. Driver services: mqtt.\n"

    queue = f"{prefix}.q.point_command.mqtt"
    broker.delete(f"queues/%2F/{queue}")
    broker.put(f"queues/%2F/{queue}", durable=True, arguments={"x-queue-type": "quorum", "x-message-ttl": 1})
    broker.put(f"queues/%2F/{prefix}.q.more", durable=True)
    dead = f"{prefix}.q.point_command_dead"
    broker.delete(f"bindings/%2F/e/{prefix}.e.point_command_dead/q/{dead}/%23")
    broker.put(f"policies/%2F/{prefix}", pattern=f"^{dead}$", definition={"message-ttl": 5})
    named = await laneway("topology", "verify", "--output", "json", **names)
    broker.delete(f"policies/%2F/{prefix}")
    assert (named.code, named.errors) == (1, "")
    assert differences(named) == {
        ("changed argument", queue),
        ("missing binding", queue),
        ("missing binding", dead),
        ("extra queue", f"{prefix}.q.more"),
        ("policy", dead),
    }
    assert "x-message-ttl is 1; should be 30000" in named.out
    code, seen = await on_terminal("topology", "verify", given=names)
    assert code == 1
    assert max(map(len, seen.splitlines())) <= 80
    piped = await laneway("topology", "verify", **names)
    assert len(piped.out.splitlines()) == 1 + len(json.loads(named.out)["differences"]) - 1  # a title; no policy now

    refused = await laneway("topology", "apply", "--service", "mqtt", **names)
    assert refused.code == 1
    assert refused.reason.startswith("laneway: TOPOLOGY_MISMATCH: ")
    assert queue in refused.reason


async def test_without_the_management_api_it_says_what_it_could_not_check(
    names: dict[str, str], prefix: str, broker: Broker
) -> None:
    del names[MANAGEMENT_URL]
    assert (await laneway("topology", "apply", "--service", "mqtt", **names)).code == 0
    ended = await laneway("topology", "verify", "--service", "mqtt", **names)
    assert ended.code == 1
    assert ended.out.startswith(
        "As it should be: 4 exchanges, 4 queues. Driver services: mqtt. Not looked at: bindings; "
    )
    assert ended.reason.startswith("laneway: PARTIAL: not checked: bindings; ")
    content = await laneway("topology", "verify", "--partial", **names)
    assert (content.code, content.errors) == (0, "")
    assert "queues. Not looked at: queues of driver services; bindings; " in content.out
    broker.delete(f"queues/%2F/{prefix}.q.driver_state")
    broker.put(f"queues/%2F/{prefix}.q.driver_state", durable=True)
    broker.delete(f"exchanges/%2F/{prefix}.e.point_command")
    named = await laneway("topology", "verify", "--partial", "--output", "json", **names)
    assert named.code == 1
    assert differences(named) == {
        ("changed argument", f"{prefix}.q.driver_state"),
        ("missing exchange", f"{prefix}.e.point_command"),
    }
    assert "x-message-ttl" in named.out


async def test_an_amqp_url_of_another_broker_is_found_out(names: dict[str, str], broker: Broker) -> None:
    assert (await laneway("topology", "apply", **names)).code == 0
    nobody = names | {AMQP_URL: f"amqp://guest:guest@127.0.0.1:{free_port()}/"}
    away = await laneway("topology", "verify", **nobody)
    assert (away.code, away.reason.split()[1]) == (3, "BROKER_AWAY:")
    broker.wipe()


async def test_rabbitmq_imports_what_is_exported(
    infra: Stack, names: dict[str, str], broker: Broker, prefix: str, tmp_path: Path
) -> None:
    file = tmp_path / "definitions.json"
    assert (await laneway("topology", "export", "--service", "mqtt", "--to-file", str(file), **names)).code == 0
    infra.rabbitmq.control("import_definitions", str(file))
    ended = await laneway("topology", "verify", **names)
    assert (ended.code, ended.errors) == (0, ""), ended.out
    broker.wipe()
    broker.load(file)
    assert (await laneway("topology", "verify", **names)).code == 0


async def test_what_cannot_be_reached_is_exit_code_3(names: dict[str, str], infra: Stack) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    for given, code in (
        ({MANAGEMENT_URL: f"http://{nobody}"}, "MANAGEMENT_AWAY"),
        ({MANAGEMENT_URL: names[MANAGEMENT_URL].replace("laneway:", "stranger:")}, "MANAGEMENT_AWAY"),
        ({MANAGEMENT_URL: names[MANAGEMENT_URL] + "/nowhere"}, "MANAGEMENT_AWAY"),
        ({AMQP_URL: names[AMQP_URL] + "no-such-host"}, "MANAGEMENT_AWAY"),
        ({AMQP_URL: f"amqp://{nobody}/", MANAGEMENT_URL: ""}, "BROKER_AWAY"),
    ):
        ended = await laneway("topology", "verify", **names | given)
        assert ended.code == 3
        assert ended.reason.startswith(f"laneway: {code}: ")
    ended = await laneway("topology", "apply", **names | {AMQP_URL: f"amqp://{nobody}/"})
    assert ended.code == 3
    assert ended.reason.startswith("laneway: BROKER_AWAY: ")
