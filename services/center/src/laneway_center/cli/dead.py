"""`laneway dead`: what ended badly and could go again, and messages that nobody could read."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from laneway_center.cli.broker_options import AMQP_URL, PREFIX, AmqpOption, PrefixOption
from laneway_center.cli.client import Center, CenterAwayError, RefusedError
from laneway_center.cli.command import EVENT_COLUMNS, DeviceOption, command_facts, event_row
from laneway_center.cli.dead_act import Tally, act_on, open_ids
from laneway_center.cli.dead_filter import (
    CommandOption,
    DriverOption,
    ErrorCodeOption,
    Filter,
    KindOption,
    ListedReasonOption,
    State,
    StatusOption,
    WhyDeadOption,
)
from laneway_center.cli.endings import FAILED, INTERRUPTED, OK, UsageError, group
from laneway_center.cli.options import (
    CENTER_URL,
    Acting,
    ExpireInOption,
    FromOption,
    LimitOption,
    OperatorOption,
    OutputOption,
    ReasonOption,
    TenantOption,
    ToOption,
    UrlOption,
    acting,
)
from laneway_center.cli.output import Column, Output, age, clock, gathered, note, say, show, show_facts, show_table
from laneway_shared.topology import Topology

app = group("Look at dead letters; send their commands again.")
RATE = 50.0
GROUP_COLUMNS = (
    Column("why dead", "reason"),
    Column("driver", "driver", cut=True),
    Column("error", "errorCode", cut=True),
    Column("count", "count", right=True),
    Column("first", "first", right=True),
    Column("last", "last", right=True),
)
COLUMNS = (
    Column("id", "id", right=True),
    Column("age", "age", right=True),
    Column("why dead", "reason"),
    Column("error", "errorCode", cut=True),
    Column("driver", "driver", cut=True),
    Column("device", "deviceId", right=True),
    Column("command", "commandId"),
    Column("state", "state"),
)
DEATH_COLUMNS = (
    Column("reason", "reason"),
    Column("queue", "queue", folds=True),
    Column("count", "count", right=True),
    Column("time", "time"),
    Column("exchange", "exchange", folds=True),
    Column("keys", "routingKeys", folds=True),
)
IdsArgument = Annotated[
    list[int] | None, typer.Argument(metavar="[ID]...", min=1, help="Entries, as `dead list` shows them.")
]
AllOption = Annotated[bool, typer.Option("--all", help="All that are open, if no filter is given.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only say what would happen.")]


@app.command(name="list")
def list_(
    *,
    driver: DriverOption = None,
    device: DeviceOption = None,
    command: CommandOption = None,
    why_dead: ListedReasonOption = None,
    status: StatusOption = None,
    error_code: ErrorCodeOption = None,
    kind: KindOption = None,
    since: FromOption = None,
    until: ToOption = None,
    state: Annotated[list[State] | None, typer.Option(help="What became of it; repeatable. open if missing.")] = None,
    group: Annotated[bool, typer.Option("--group", help="Only the groups, no single letters.")] = False,
    limit: LimitOption = 20,
    url: UrlOption = CENTER_URL,
    tenant: TenantOption = 1,
    output: OutputOption = Output.TABLE,
) -> None:
    """Count them by reason, driver and error, and list the newest."""
    wanted = Filter(
        driver=driver, device=device, command=command, kind=kind, reasons=why_dead, statuses=status,
        error_code=error_code, since=since, until=until,
    )  # fmt: skip
    query = wanted.query(*(state or [State.OPEN]))
    with Center(url, tenant) as center:
        groups = center.get("/dead-letters/groups", **query)
        found = [] if group else gathered("letters", center.pages("/dead-letters", "deadLetters", limit, **query))
    if output is Output.JSON:
        show(groups if group else groups | {"deadLetters": found})
        return
    if not groups["total"]:
        say("No dead letter matches.")
        return
    show_table(
        GROUP_COLUMNS, [{**each, "first": age(each["first"]), "last": age(each["last"])} for each in groups["groups"]]
    )
    if found:
        shown = f", the newest {len(found):,}" if len(found) < groups["total"] else ""
        say(f"\n{groups['total']:,} in all{shown}:")
        named = [each if each["state"] != State.OPEN else {**each, "state": None} for each in found]
        show_table(COLUMNS, [{**each, "age": age(each["at"])} for each in named])


@app.command(name="show")
def show_(
    letter: Annotated[int, typer.Argument(metavar="ID", min=1, help="As `dead list` shows it.", show_default=False)],
    *,
    url: UrlOption = CENTER_URL,
    tenant: TenantOption = 1,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show one with all that is known.

    Body, headers, where RabbitMQ took it from and why; the command, its attempts and its timeline.
    """
    with Center(url, tenant) as center:
        found = center.get(f"/dead-letters/{letter}")
    if output is Output.JSON:
        show(found)
        return
    show_facts({
        "dead letter": found["id"],
        "state": _state(found),
        "at": clock(found["at"]),
        "why dead": " ".join(filter(None, (found["reason"], found["errorCode"]))),
        "explanation": found["explanation"],
        "ended as": found["endedAs"],
        **(command_facts(found["command"]) if found["command"] else {}),
    })  # fmt: skip
    if found["events"]:
        say("\nTimeline")
        show_table(EVENT_COLUMNS, [event_row(line) for line in found["events"]])
    for each in found["letters"]:
        _show_letter(each)


def _state(entry: Mapping[str, Any]) -> str:
    if entry["state"] == State.OPEN:
        return "open"
    why = f": {entry['handledWhy']}" if entry["handledWhy"] else ""
    return f"{entry['state']} by {entry['handledBy']}, {clock(entry['handledAt'])}{why}"


def _show_letter(letter: Mapping[str, Any]) -> None:
    say(f"\nLetter {letter['id']}, received {clock(letter['receivedAt'])}")
    cut = ", cut here" if letter["bodyCut"] else ""
    coded = ", base64" if letter["bodyEncoding"] == "base64" else ""
    show_facts({
        "reason": letter["reason"],
        "explanation": letter["explanation"],
        "queue": letter["queue"],
        "key": letter["routingKey"],
        "attempt": letter["attempt"],
        "headers": {name: value for name, value in letter["headers"].items() if name != "x-death"} or None,
        f"body ({letter['bodyBytes']:,} bytes{coded}{cut})": letter["body"],
    })  # fmt: skip
    if letter["xDeath"]:
        show_table(DEATH_COLUMNS, [{**each, "time": clock(each["time"])} for each in letter["xDeath"]])


@app.command()
def replay(
    ids: IdsArgument = None,
    *,
    driver: DriverOption = None,
    device: DeviceOption = None,
    command: CommandOption = None,
    why_dead: WhyDeadOption = None,
    status: StatusOption = None,
    error_code: ErrorCodeOption = None,
    since: FromOption = None,
    until: ToOption = None,
    everything: AllOption = False,
    dry_run: DryRunOption = False,
    rate: Annotated[float, typer.Option(min=0.1, max=100_000, metavar="N", help="Letters a second.")] = RATE,
    expire_in: ExpireInOption = None,
    force: Annotated[
        bool, typer.Option("--force", help="Also unsafe ones that expired, and intents that were overtaken.")
    ] = False,
    reason: ReasonOption = None,
    operator: OperatorOption = None,
    url: UrlOption = CENTER_URL,
    tenant: TenantOption = 1,
    output: OutputOption = Output.TABLE,
) -> None:
    """Send dead commands again, each once.

    By id, or all open ones of a filter, oldest first; each as a new attempt with a new deadline.

    Exit code 0: all of them, or nothing was left; 1: some were refused; 130: Ctrl-C, the same again goes on.
    """
    wanted = Filter(
        driver=driver, device=device, command=command, reasons=why_dead, statuses=status, error_code=error_code,
        since=since, until=until,
    )  # fmt: skip
    _meant(ids, wanted, everything=everything)
    act = acting(operator, reason, dry_run=dry_run)
    body = {"reason": act.reason, "expireIn": expire_in, "force": force, "dryRun": dry_run}
    pace = None if dry_run else rate
    raise typer.Exit(_act("replay", ids, wanted, (url, tenant, act), body, pace, output))


@app.command()
def discard(
    ids: IdsArgument = None,
    *,
    driver: DriverOption = None,
    device: DeviceOption = None,
    command: CommandOption = None,
    why_dead: WhyDeadOption = None,
    status: StatusOption = None,
    error_code: ErrorCodeOption = None,
    kind: KindOption = None,
    since: FromOption = None,
    until: ToOption = None,
    everything: AllOption = False,
    dry_run: DryRunOption = False,
    reason: ReasonOption = None,
    operator: OperatorOption = None,
    url: UrlOption = CENTER_URL,
    tenant: TenantOption = 1,
    output: OutputOption = Output.TABLE,
) -> None:
    """Put dead letters away for good.

    By id, or all open ones of a filter. They can't be sent again afterwards.
    """
    wanted = Filter(
        driver=driver, device=device, command=command, kind=kind, reasons=why_dead, statuses=status,
        error_code=error_code, since=since, until=until,
    )  # fmt: skip
    _meant(ids, wanted, everything=everything)
    act = acting(operator, reason, dry_run=dry_run)
    body = {"reason": act.reason, "dryRun": dry_run}
    raise typer.Exit(_act("discard", ids, wanted, (url, tenant, act), body, None, output))


def _meant(ids: list[int] | None, wanted: Filter, *, everything: bool) -> None:
    if ids and (everything or not wanted.is_empty):
        raise UsageError("give ids or a filter, not both")
    if not ids and wanted.is_empty and not everything:
        raise UsageError("which ones? Give ids, a filter such as --why-dead expired, or --all")


def _act(
    what: str,
    ids: list[int] | None,
    wanted: Filter,
    place: tuple[str, int, Acting],
    body: Mapping[str, Any],
    rate: float | None,
    output: Output,
) -> int:
    url, tenant, act = place
    with Center(url, tenant, act.operator) as center:
        meant = list(dict.fromkeys(ids)) if ids else open_ids(center, wanted)
        if not meant:
            _tell_nothing(center, what, wanted, output)
            return OK
        tally = Tally(matched=len(meant))
        try:
            for tally in act_on(center, what, meant, body, rate):  # noqa: B007 - the last one is what came of it
                pass
        except (CenterAwayError, RefusedError):
            if tally.results:
                _tell(what, tally, output, dry_run=bool(body["dryRun"]))
                note(f"{tally.left:,} not tried, or nobody knows; the same again doubles none")
            raise
    _tell(what, tally, output, dry_run=bool(body["dryRun"]))
    if tally.stopped:
        note(f"laneway: INTERRUPTED: {tally.left:,} not tried; the same again goes on")
        return INTERRUPTED
    return FAILED if tally.refused else OK


def _tell_nothing(center: Center, what: str, wanted: Filter, output: Output) -> None:
    """Nothing is open; those that were handled before are why."""
    handled = {state.value: center.get("/dead-letters/groups", **wanted.query(state))["total"] for state in State}
    if output is Output.JSON:
        show({"matched": 0, "done": 0, "refused": 0, "left": 0, "handledBefore": handled, "results": []})
        return
    before = [f"{count:,} {state}" for state, count in handled.items() if count and state != State.OPEN]
    also = f" ({', '.join(before)} before)" if before else ""
    say(f"Nothing to {what}: no open dead letter matches{also}.")


def _tell(what: str, tally: Tally, output: Output, *, dry_run: bool) -> None:
    if output is Output.JSON:
        show({
            "matched": tally.matched, "done": tally.done, "refused": tally.refused.total(), "left": tally.left,
            "dryRun": dry_run, "results": tally.results,
        })  # fmt: skip
        return
    done = {"replay": "replayed", "discard": "discarded"}[what]
    say(f"{tally.done:,} {'would be ' if dry_run else ''}{done}, {tally.refused.total():,} refused.")
    for code, count in tally.refused.most_common():
        say(f"  {count:,} {code}, such as {tally.examples[code]}")
    for warning, count in tally.warnings.most_common():
        say(f"  {count:,} with a warning: {warning}")


@app.command()
def drain(
    *,
    to: Annotated[
        Path | None,
        typer.Option("--to-file", dir_okay=False, metavar="FILE", help="Take letters off the queue into it."),
    ] = None,
    given: Annotated[
        Path | None, typer.Option("--from-file", exists=True, dir_okay=False, metavar="FILE", help="Give them back.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Also while a center consumes the queue.")] = False,
    amqp_url: AmqpOption = AMQP_URL,
    prefix: PrefixOption = PREFIX,
    output: OutputOption = Output.TABLE,
) -> None:
    """Save letters while no center runs, and give them back.

    Straight from RabbitMQ into a file; later from the file to the dead exchange.

    Nothing is acked before it is on disk; the file is appended to. What was given back is noted in FILE.given, so that
    the same again doubles none. Commands are never sent: a center judges the letters as it would have.
    """
    from laneway_center.cli import dead_drain  # noqa: PLC0415 - AMQP is a quarter second of imports

    topology = Topology(prefix=prefix)
    if (to is None) == (given is None):
        raise UsageError("which way? Give --to-file FILE or --from-file FILE")
    if to is not None:
        raise typer.Exit(dead_drain.to_file(to, topology, amqp_url, output, force=force))
    if given is not None:
        raise typer.Exit(dead_drain.from_file(given, topology, amqp_url, output))
