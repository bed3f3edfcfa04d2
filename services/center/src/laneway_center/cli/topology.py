"""`laneway topology`: RabbitMQ's exchanges, queues and bindings, held against what Laneway needs."""

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import orjson
import typer

from laneway_center.cli.broker_options import AMQP_URL, PREFIX, AmqpOption, PrefixOption
from laneway_center.cli.endings import FAILED, OK, UsageError, group
from laneway_center.cli.management import held, vhost_of
from laneway_center.cli.options import OutputOption, http_url
from laneway_center.cli.output import Column, Output, note, say, show, show_table, write_file
from laneway_center.cli.topology_differences import Difference, Held, Kind, differences, services_of
from laneway_shared.broker import declare, inspect
from laneway_shared.broker.inspect import MISSING
from laneway_shared.messages import is_routing_name
from laneway_shared.telemetry import configure_logs
from laneway_shared.topology import Queue, Topology, definitions

app = group("RabbitMQ's exchanges, queues and bindings.")
UNNAMED = "queues of driver services"
BEYOND_AMQP = ("bindings", "extra queues, exchanges and bindings", "policies")
COLUMNS = (Column("difference", "kind"), Column("name", "name", folds=True), Column("says", "says", folds=True))


def _services(names: list[str] | None) -> list[str]:
    for name in names or ():
        if not is_routing_name(name):
            raise typer.BadParameter(f"{name}: a service may have letters, digits, _ and - only, at most 64")
    return list(dict.fromkeys(names or ()))


ServiceOption = Annotated[
    list[str] | None,
    typer.Option(callback=_services, metavar="NAME", help="A driver service that has a command queue; repeatable."),
]


@app.command()
def apply(
    *,
    service: ServiceOption = None,
    amqp_url: AmqpOption = AMQP_URL,
    prefix: PrefixOption = PREFIX,
    output: OutputOption = Output.TABLE,
) -> None:
    """Create what is missing.

    What exists with other arguments is left as it is, and named. Queues of driver services are looked at if --service
    names them, and not otherwise.

    Centers and drivers do this themselves at their start; it is for brokers that are prepared before.
    """
    topology = Topology(prefix=prefix)
    queues = topology.queues(service or ())
    configure_logs("CRITICAL")
    created = asyncio.run(_created(topology, queues, amqp_url))
    names = {"exchanges": [each.name for each in topology.exchanges], "queues": [each.name for each in queues]}
    if output is Output.JSON:
        show(names | {"created": created})
        return
    say(f"There: {len(topology.exchanges)} exchanges, {len(queues)} queues with a binding each.")
    say(f"Created: {', '.join(created)}." if created else "No exchange and no queue was missing.")
    say("Each binding was made, if it wasn't there; AMQP doesn't tell which were missing.")
    if not service:
        say("Queues of driver services were not looked at: name the services with --service.")


async def _created(topology: Topology, queues: Sequence[Queue], amqp_url: str) -> list[str]:
    """Declare it all; the names of what was missing before."""
    missing = await inspect(amqp_url, topology.exchanges, queues, names_only=True)
    await declare(amqp_url, topology.exchanges, queues)
    return list(missing)


@app.command()
def export(
    *,
    service: ServiceOption = None,
    to: Annotated[
        Path | None, typer.Option("--to-file", dir_okay=False, metavar="FILE", help="Instead of standard output.")
    ] = None,
    vhost: Annotated[str, typer.Option(help="Virtual host that the definitions are for.")] = "/",
    prefix: PrefixOption = PREFIX,
) -> None:
    """Write definitions for RabbitMQ's import.

    For `rabbitmqctl import_definitions FILE`, or the management API.

    They hold no users and no policies; every argument stands at its queue. Needs no broker.
    """
    said = orjson.dumps(definitions(Topology(prefix=prefix), service or (), vhost), option=orjson.OPT_INDENT_2)
    if to is None:
        typer.echo(said.decode())
    else:
        write_file(to, said + b"\n")


@app.command()
def verify(
    *,
    service: ServiceOption = None,
    amqp_url: AmqpOption = AMQP_URL,
    management_url: Annotated[
        str | None,
        typer.Option(
            envvar="LANEWAY_RABBITMQ_MANAGEMENT_URL",
            metavar="URL",
            callback=http_url,
            help="RabbitMQ's management API; without a user in it that of AMQP is taken.",
        ),
    ] = None,
    partial: Annotated[
        bool, typer.Option("--partial", help="Be content with what can be checked, without the management API too.")
    ] = False,
    ignore: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Names under the prefix that are somebody else's, with *; repeatable."),
    ] = None,
    prefix: PrefixOption = PREFIX,
    output: OutputOption = Output.TABLE,
) -> None:
    """Name what a live broker has otherwise.

    Exit code 0: none; 1: differences, or not all of it could be checked: AMQP alone tells names and arguments, no
    bindings and nothing that is too much. Without --service the command queues that are there say which services
    there are.
    """
    topology = Topology(prefix=prefix)
    if management_url is None:
        services, found = service or [], asyncio.run(_by_amqp(topology, service or (), amqp_url))
        unchecked: Sequence[str] = BEYOND_AMQP if service else (UNNAMED, *BEYOND_AMQP)
    else:
        there = held(management_url, amqp_url)
        services = service or list(services_of(topology, there))
        asyncio.run(_same_broker(topology, services, there, amqp_url))
        found = differences(topology, services, there, ignore or ())
        unchecked = ("policies",) if there.policies is None else ()
    if output is Output.JSON:
        show({
            "vhost": vhost_of(amqp_url), "services": services, "differences": found, "unchecked": unchecked,
            "sound": not found and not unchecked,
        })  # fmt: skip
    else:
        _tell(topology, services, found, unchecked)
    if unchecked and not partial:
        how = "set LANEWAY_RABBITMQ_MANAGEMENT_URL" if management_url is None else "its user needs the tag policymaker"
        note(f"laneway: PARTIAL: not checked: {'; '.join(unchecked)}. For that {how}, or say --partial")
    raise typer.Exit(FAILED if found or (unchecked and not partial) else OK)


def _tell(topology: Topology, services: Sequence[str], found: Sequence[Difference], unchecked: Sequence[str]) -> None:
    if found:
        show_table(COLUMNS, [asdict(each) for each in found])
        return
    queues = topology.queues(services)
    named = f" Driver services: {', '.join(services)}." if services else " No driver service has a queue."
    if not services and UNNAMED in unchecked:
        named = ""
    beyond = f" Not looked at: {'; '.join(unchecked)}." if unchecked else ""
    say(f"As it should be: {len(topology.exchanges)} exchanges, {len(queues)} queues.{named}{beyond}")


async def _same_broker(topology: Topology, services: Sequence[str], there: Held, amqp_url: str) -> None:
    """Hold the two URLs against each other: what the one lists the other has to have.

    Raises:
        BrokerAwayError: nobody answers over AMQP.
        UsageError: they are of different brokers.
    """
    configure_logs("CRITICAL")
    queues = topology.queues(services)
    missing = await inspect(amqp_url, topology.exchanges, queues, names_only=True)
    listed = there.exchanges.keys() | there.queues.keys()
    names = [*(each.name for each in topology.exchanges), *(each.name for each in queues)]
    for name in names:
        if (name in missing) == (name in listed):
            has, lacks = ("--management-url", "--amqp-url") if name in missing else ("--amqp-url", "--management-url")
            raise UsageError(f"{has} and {lacks} are of different brokers: only the first one has {name}")


async def _by_amqp(topology: Topology, services: Sequence[str], amqp_url: str) -> list[Difference]:
    configure_logs("CRITICAL")
    exchanges = {exchange.name for exchange in topology.exchanges}
    found = []
    for name, says in (await inspect(amqp_url, topology.exchanges, topology.queues(services))).items():
        missing = Kind.MISSING_EXCHANGE if name in exchanges else Kind.MISSING_QUEUE
        found.append(Difference(kind=missing if says == MISSING else Kind.ARGUMENT, name=name, says=says))
    return found
