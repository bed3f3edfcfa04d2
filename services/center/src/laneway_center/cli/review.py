"""`laneway review`: commands whose outcome nobody knows, with all evidence, and what a person decides."""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Annotated, Any
from urllib.parse import quote

import typer

from laneway_center.cli.client import Center
from laneway_center.cli.command import EVENT_COLUMNS, DeviceOption, IdArgument, command_facts, event_row
from laneway_center.cli.endings import UsageError, group
from laneway_center.cli.options import (
    CENTER_URL,
    ExpireInOption,
    LimitOption,
    OperatorOption,
    OutputOption,
    ReasonOption,
    TenantOption,
    UrlOption,
    acting,
)
from laneway_center.cli.output import Column, Output, age, clock, gathered, say, show, show_facts, show_table

app = group("Decide commands whose outcome nobody knows.")
COLUMNS = (
    Column("command", "commandId"),
    Column("since", "since", right=True),
    Column("device", "deviceId", right=True),
    Column("point", "pointId", right=True),
    Column("behind", "behind", right=True),
    Column("why", "why", folds=True),
)
ATTEMPT_COLUMNS = (
    Column("attempt", "attempt", right=True),
    Column("claimed", "claimedAt"),
    Column("started", "startedAt"),
    Column("outcome", "outcome", folds=True),
)
ANSWER_COLUMNS = (
    Column("attempt", "attempt", right=True),
    Column("said", "kind"),
    Column("by", "source", cut=True),
    Column("times", "count", right=True),
    Column("first", "first"),
    Column("value", "responseValue", folds=True),
    Column("error", "error", folds=True),
)


class Decision(StrEnum):
    """What it was."""

    SUCCESS = "SUCCESS"
    FAILED = "FAILED"


@app.command(name="list")
def list_(
    *,
    device: DeviceOption = None,
    driver: Annotated[str | None, typer.Option(metavar="NAME", help="Only of this driver service.")] = None,
    limit: LimitOption = 50,
    url: UrlOption = CENTER_URL,
    tenant: TenantOption = 1,
    output: OutputOption = Output.TABLE,
) -> None:
    """List open reviews, oldest first."""
    with Center(url, tenant) as center:
        found = gathered("reviews", center.pages("/reviews", "reviews", limit, deviceId=device, driver=driver))
    if output is Output.JSON:
        show({"reviews": found})
    elif found:
        show_table(COLUMNS, [_row(each) for each in found])
    else:
        say("Nothing is in review.")


def _row(review: Mapping[str, Any]) -> dict[str, Any]:
    behind = f"{review['waitingBehind']}{' held' if review['holdsLane'] else ''}"
    return {**review, "since": age(review["since"]), "behind": behind}


@app.command(name="show")
def show_(
    command_id: IdArgument,
    *,
    url: UrlOption = CENTER_URL,
    tenant: TenantOption = 1,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show one with all evidence.

    Attempts, answers, late answers, timeline.
    """
    with Center(url, tenant) as center:
        found = center.get(f"/reviews/{quote(command_id, safe='')}")
    if output is Output.JSON:
        show(found)
        return
    review, decision = found["review"], found["decision"]
    holds = f"yes, {review['waitingBehind']} wait behind it" if review["holdsLane"] else "no"
    show_facts({
        **command_facts(found["command"]),
        "in review": f"since {clock(review['since'])}: {review['why']}" if found["open"] else "not any more",
        "holds lane": holds if found["open"] else None,
        "decided": decision and _decided(decision),
    })  # fmt: skip
    for title, columns, rows in (
        ("Attempts", ATTEMPT_COLUMNS, [_timed(each, "claimedAt", "startedAt") for each in found["attempts"]]),
        ("Answers before", ANSWER_COLUMNS, list(_answers(found["answers"]))),
        ("Late answers", ANSWER_COLUMNS, list(_answers(found["lateAnswers"]))),
        ("Timeline", EVENT_COLUMNS, [event_row(line) for line in found["events"]]),
    ):
        if rows:
            say(f"\n{title}")
            show_table(columns, rows)
    if found["open"]:
        say(f"\nDecide: laneway review resolve {command_id} --as SUCCESS|FAILED --reason TEXT, or review requeue")


def _decided(decision: Mapping[str, Any]) -> str:
    who = decision["operator"] or "late evidence"
    why = f": {decision['why']}" if decision["why"] else ""
    return f"{decision['outcome']} by {who}, {clock(decision['at'])}{why}"


def _timed(said: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {**said, **{name: clock(said[name]) for name in names}}


def _answers(answers: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for each in answers:
        error = " ".join(filter(None, (each["errorCode"], each["errorMessage"])))
        yield {**_timed(each, "first"), "error": error}


@app.command()
def resolve(
    command_id: IdArgument,
    *,
    outcome: Annotated[Decision | None, typer.Option("--as", help="What it was.")] = None,
    reason: ReasonOption = None,
    operator: OperatorOption = None,
    url: UrlOption = CENTER_URL,
    tenant: TenantOption = 1,
    output: OutputOption = Output.TABLE,
) -> None:
    """Decide that it is SUCCESS or FAILED.

    If somebody else did meanwhile, that is said with who and what, and the exit code is 1.
    """
    if outcome is None:
        raise UsageError("what was it? Give --as SUCCESS or --as FAILED")
    act = acting(operator, reason)
    with Center(url, tenant, act.operator) as center:
        body = {"outcome": outcome.value, "reason": act.reason}
        found = center.post(f"/reviews/{quote(command_id, safe='')}/resolve", body)
    if output is Output.JSON:
        show(found)
    else:
        say(f"{found['commandId']} is {found['status']}")


@app.command()
def requeue(
    command_id: IdArgument,
    *,
    expire_in: ExpireInOption = None,
    force: Annotated[bool, typer.Option("--force", help="Also if a newer command of the same intent exists.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would happen.")] = False,
    reason: ReasonOption = None,
    operator: OperatorOption = None,
    url: UrlOption = CENTER_URL,
    tenant: TenantOption = 1,
    output: OutputOption = Output.TABLE,
) -> None:
    """Send it again, as a new attempt.

    It goes to the tail of its lane, with a new deadline.
    """
    act = acting(operator, reason, dry_run=dry_run)
    with Center(url, tenant, act.operator) as center:
        body = {"reason": act.reason, "expireIn": expire_in, "force": force, "dryRun": dry_run}
        found = center.post(f"/reviews/{quote(command_id, safe='')}/requeue", body)
    if output is Output.JSON:
        show(found)
    else:
        say(told_outcome(found, dry_run=dry_run))


def told_outcome(outcome: Mapping[str, Any], *, dry_run: bool) -> str:
    """One command that was sent again, in a sentence."""
    would = "would go again" if dry_run else "goes again"
    place = "" if outcome.get("seq") is None else f", place {outcome['seq']} (was {outcome['previousSeq']})"
    deadline = f", until {clock(outcome['expireAt'])}" if outcome.get("expireAt") else ""
    warned = "".join(f"; {warning}" for warning in outcome.get("warnings") or ())
    return f"{outcome['commandId']} {would} as attempt {outcome['nextAttempt']}{place}{deadline}{warned}"
