"""What a RabbitMQ holds, as its management HTTP API says. AMQP itself can neither list queues nor bindings."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import httpx

from laneway_center.cli.topology_differences import Binding, Held, HeldExchange, HeldQueue, Policy
from laneway_shared.errors import LanewayError

TIMEOUT_S = 30.0


class ManagementAwayError(LanewayError):
    """RabbitMQ's management API can't be read."""

    code = "MANAGEMENT_AWAY"


def vhost_of(amqp_url: str) -> str:
    """The virtual host that an AMQP URL names; `/` if it names none."""
    return unquote(urlsplit(amqp_url).path.removeprefix("/")) or "/"


def held(management_url: str, amqp_url: str) -> Held:
    """All exchanges, queues and bindings of the virtual host. Without a user in its URL that of AMQP is taken.

    Raises:
        ManagementAwayError: nobody answers there, it is no management API, or it doesn't let this user read.
    """
    place = urlsplit(management_url)
    user = place if place.username else urlsplit(amqp_url)
    auth = (unquote(user.username or "guest"), unquote(user.password or "guest"))
    base = f"{place.scheme}://{place.netloc.rpartition('@')[2]}{place.path.rstrip('/')}"
    vhost = vhost_of(amqp_url)
    try:
        with httpx.Client(base_url=base, auth=auth, timeout=TIMEOUT_S, trust_env=False) as client:
            exchanges, queues, bindings = (_must(client, base, kind, vhost) for kind in _KINDS)
            policies = [_listed(client, base, kind, vhost) for kind in ("policies", "operator-policies")]
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ManagementAwayError(f"{base} can't be reached: {error or type(error).__name__}") from error
    return Held(
        exchanges={each["name"]: _exchange(each) for each in exchanges},
        queues={each["name"]: _queue(each) for each in queues},
        bindings=frozenset(_binding(each) for each in bindings),
        policies=None if None in policies else [_policy(each) for listed in policies for each in listed or ()],
    )


_KINDS = ("exchanges", "queues", "bindings")


def _must(client: httpx.Client, base: str, kind: str, vhost: str) -> list[dict[str, Any]]:
    found = _listed(client, base, kind, vhost)
    if found is None:
        raise ManagementAwayError(f"{base} doesn't let this user read; it needs the tag `monitoring`")
    return found


def _listed(client: httpx.Client, base: str, kind: str, vhost: str) -> list[dict[str, Any]] | None:
    """None: this user may not read it."""
    answer = client.get(f"/api/{kind}/{quote(vhost, safe='')}")
    if answer.status_code in {httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN}:
        return None
    try:
        found = answer.json()
    except ValueError:
        found = None
    if answer.status_code == httpx.codes.NOT_FOUND and isinstance(found, dict):
        raise ManagementAwayError(f"{base} has no virtual host {vhost}")
    if not answer.is_success or not isinstance(found, list):
        raise ManagementAwayError(f"{base} is no management API of RabbitMQ (HTTP {answer.status_code})")
    return found


def _exchange(said: Mapping[str, Any]) -> HeldExchange:
    return HeldExchange(kind=said["type"], durable=said["durable"], transient=said["auto_delete"])


def _queue(said: Mapping[str, Any]) -> HeldQueue:
    return HeldQueue(
        arguments=said.get("arguments") or {},
        durable=said["durable"],
        transient=said["exclusive"] or said["auto_delete"],
    )


def _binding(said: Mapping[str, Any]) -> Binding:
    return Binding(
        source=said["source"],
        destination=said["destination"],
        to_queue=said["destination_type"] == "queue",
        key=said["routing_key"],
    )


def _policy(said: Mapping[str, Any]) -> Policy:
    return Policy(
        name=said["name"],
        pattern=said["pattern"],
        says=said["definition"],
        to_queues=said["apply-to"] != "exchanges",
    )
