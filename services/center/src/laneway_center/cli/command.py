"""`laneway command`: submit, show, follow, list and cancel."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any
from urllib.parse import quote

import typer
import uuid_utils

from laneway_center.cli.client import Center, CenterAwayError
from laneway_center.cli.command_watch import follow
from laneway_center.cli.endings import FAILED, OK, UsageError, group
from laneway_center.cli.options import (
    CENTER_URL,
    ExpireInOption,
    FromOption,
    LimitOption,
    OperatorOption,
    OutputOption,
    TenantOption,
    ToOption,
    UrlOption,
)
from laneway_center.cli.output import (
    Column,
    Output,
    age,
    clock,
    gathered,
    note,
    progress,
    say,
    show,
    show_facts,
    show_table,
)
from laneway_shared.lifecycle import Status

app = group("Submit, show, follow, list and cancel commands.")
LONGEST_WAIT_S = 30.0  # of one question to the center
COLUMNS = (
    Column("command", "commandId"),
    Column("status", "status"),
    Column("device", "deviceId", right=True),
    Column("point", "pointId", right=True),
    Column("type", "type"),
    Column("age", "age", right=True),
    Column("error", "errorCode", cut=True),
)
EVENT_COLUMNS = (
    Column("at", "at"),
    Column("kind", "kind"),
    Column("to", "to"),
    Column("try", "attempt", right=True),
    Column("note", "note", folds=True),
)


def _id(text: str) -> str:
    """Refuse what would be another path of the center."""
    if not text or "/" in text:
        raise typer.BadParameter("is no id of a command")
    return text


IdArgument = Annotated[str, typer.Argument(metavar="ID", callback=_id, help="The command's id.", show_default=False)]
DeviceOption = Annotated[int | None, typer.Option("--device", min=1, max=2**63 - 1, metavar="N", help="Device id.")]
PointOption = Annotated[int | None, typer.Option("--point", min=1, max=2**63 - 1, metavar="N", help="Point id.")]


class Gate(StrEnum):
    """When the next command of the lane may go."""

    ACK = "ack"
    TRANSPORT = "transport"


class Merge(StrEnum):
    """What becomes of commands of the same intent."""

    LATEST = "latest"
    REJECT_DUPLICATE = "reject_duplicate"


class Safety(StrEnum):
    """Whether it may run twice."""

    SAFE = "safe"
    UNSAFE = "unsafe"


class Type(StrEnum):
    """What is done with the point."""

    READ = "READ"
    WRITE = "WRITE"


@app.command()
def submit(
    *,
    device: DeviceOption = None,
    point: PointOption = None,
    value: Annotated[str | None, typer.Option(metavar="TEXT", help="Written; without it the point is read.")] = None,
    command_id: Annotated[
        str | None, typer.Option("--id", metavar="UUID", help="Its id; the same again is the same command.")
    ] = None,
    expire_in: ExpireInOption = None,
    priority: Annotated[int | None, typer.Option(min=0, max=9, help="Smaller goes first in its lane.")] = None,
    intent_key: Annotated[str | None, typer.Option(metavar="TEXT", help="What it is meant to bring about.")] = None,
    merge: Annotated[Merge | None, typer.Option(help="What becomes of others of this intent.")] = None,
    gate: Annotated[Gate | None, typer.Option(help="When the next of the lane may go.")] = None,
    retry_safety: Annotated[Safety | None, typer.Option(help="Whether it may run twice.")] = None,
    max_attempts: Annotated[int | None, typer.Option(min=1, max=100, help="Attempts, at most.")] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Follow it to its end, as `command watch` does.")] = False,
    url: UrlOption = CENTER_URL,
    tenant: TenantOption = 1,
    output: OutputOption = Output.TABLE,
) -> None:
    """Submit a command: a WRITE with --value, else a READ."""
    if device is None or point is None:
        raise UsageError("which point of which device? Give --device N and --point N")
    named = command_id or str(uuid_utils.uuid7())
    body = {
        "commandId": named, "deviceId": device, "pointId": point, "type": "READ" if value is None else "WRITE",
        "value": value, "expireIn": expire_in, "priority": priority, "intentKey": intent_key, "merge": merge,
        "gate": gate,
        "retrySafety": retry_safety, "maxAttempts": max_attempts,
    }  # fmt: skip
    with Center(url, tenant) as center:
        try:
            stored = center.post("/commands", body)
        except CenterAwayError as error:
            again = f"if it was stored nobody knows; safe to repeat with --id {named}"
            raise type(error)(f"{error.message} ({again})") from None
        found = stored["commandId"]  # of the same intent, perhaps: then nothing was stored under our id
        if found != named.lower():
            note(f"nothing new was stored: this one waits ({found}, of the same intent)")
        if watch:
            if output is Output.TABLE:
                say(f"{found} is {stored['status']}")
            raise typer.Exit(follow(center, found, output, reached=True))
    if output is Output.JSON:
        show(stored)
    else:
        say(f"{found} is {stored['status']}, place {stored['seq']} in lane {stored['laneKey']}")


@app.command()
def get(
    command_id: IdArgument,
    *,
    events: Annotated[bool, typer.Option("--events", help="With its timeline.")] = False,
    wait: Annotated[float, typer.Option(min=0, max=86_400, metavar="S", help="Seconds to wait until it is final.")] = 0,
    url: UrlOption = CENTER_URL,
    tenant: TenantOption = 1,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show a command as it stands."""
    path = f"/commands/{quote(command_id, safe='')}"
    with Center(url, tenant) as center, progress() as bars:
        if wait:
            bars.add_task("waiting", total=None)
        found = center.get(path, wait=min(wait, LONGEST_WAIT_S) or None)
        left = wait - LONGEST_WAIT_S
        while left > 0 and not found["final"]:
            found, left = center.get(path, wait=min(left, LONGEST_WAIT_S)), left - LONGEST_WAIT_S
        lines = center.get(f"{path}/events")["events"] if events else None
    if output is Output.JSON:
        show(found if lines is None else found | {"events": lines})
        return
    show_facts(command_facts(found))
    if lines is not None:
        say("")
        show_table(EVENT_COLUMNS, [event_row(line) for line in lines])


def command_facts(found: Mapping[str, Any]) -> dict[str, Any]:
    """A command for a reader."""
    deadline = found["expireAt"]
    attempts = f"{found['attempt']}" if found["attempt"] else "none yet"
    return {
        "command": found["commandId"],
        "status": found["status"],
        "does": f"{found['type']} point {found['pointId']} of device {found['deviceId']}",
        "value": found["value"],
        "answer": found["responseValue"],
        "error": " ".join(filter(None, (found["errorCode"], found["errorMessage"]))),
        "attempts": f"{attempts}; {found['attemptsSpent']} of {found['maxAttempts']} spent",
        "lane": f"{found['laneKey']}, place {found['seq']}, priority {found['priority']}",
        "driver": found["driver"],
        "repeating": found["retrySafety"],
        "intent": found["intentKey"],
        "accepted": clock(found["acceptedAt"]),
        "deadline": clock(deadline),
        "sent": clock(found["sentAt"]),
        "next try": clock(found["nextTryAt"]),
        "answer due": clock(found["answerDueAt"]),
        "finished": clock(found["finishedAt"]),
    }


def event_row(line: Mapping[str, Any]) -> dict[str, Any]:
    """A line of a timeline for a table; `to` is empty where nothing changed."""
    changed = line["to"] if line["to"] != line["from"] else None
    return {**line, "at": clock(line["at"]), "to": changed, "attempt": line["attempt"] or None}


@app.command()
def watch(
    command_id: IdArgument,
    *,
    url: UrlOption = CENTER_URL,
    tenant: TenantOption = 1,
    output: OutputOption = Output.TABLE,
) -> None:
    """Follow one live until it is final.

    Or until it is in review, for a person to decide.

    Exit code 0: SUCCESS; 1: it ended otherwise, or is in review; 3: the center went away and stayed away, which ends
    nothing but the watching. With --output json one object a line.
    """
    with Center(url, tenant) as center:
        raise typer.Exit(follow(center, command_id, output))


@app.command(name="list")
def list_(
    *,
    device: DeviceOption = None,
    point: PointOption = None,
    status: Annotated[list[Status] | None, typer.Option(help="Only in this state; repeatable.")] = None,
    kind: Annotated[Type | None, typer.Option("--type", help="Only these.")] = None,
    since: FromOption = None,
    until: ToOption = None,
    limit: LimitOption = 50,
    url: UrlOption = CENTER_URL,
    tenant: TenantOption = 1,
    output: OutputOption = Output.TABLE,
) -> None:
    """List commands, newest first."""
    where = {
        "deviceId": device, "pointId": point, "status": [str(each) for each in status or ()] or None, "type": kind,
        "from": since, "to": until,
    }  # fmt: skip
    with Center(url, tenant) as center:
        found = gathered("commands", center.pages("/commands", "commands", limit, **where))
    if output is Output.JSON:
        show({"commands": found})
    elif found:
        show_table(COLUMNS, [each | {"age": age(each["acceptedAt"])} for each in found])
    else:
        say("No command matches.")


@app.command()
def cancel(
    command_id: IdArgument,
    *,
    reason: Annotated[str | None, typer.Option(metavar="TEXT", help="Why; it is recorded.")] = None,
    operator: OperatorOption = None,
    url: UrlOption = CENTER_URL,
    tenant: TenantOption = 1,
    output: OutputOption = Output.TABLE,
) -> None:
    """Cancel one that no driver has begun.

    Exit code 1: too late.
    """
    with Center(url, tenant, operator) as center:
        found = center.post(f"/commands/{quote(command_id, safe='')}/cancel", {"reason": reason})
    if output is Output.JSON:
        show(found)
    else:
        say(f"{found['commandId']} is {found['status']}")
    raise typer.Exit(OK if found["status"] == Status.CANCELLED else FAILED)
