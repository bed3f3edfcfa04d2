"""`laneway audit`: what operators did, when, and why."""

from typing import Annotated

import typer

from laneway_center.cli.client import Center
from laneway_center.cli.options import (
    CENTER_URL,
    FromOption,
    LimitOption,
    OutputOption,
    TenantOption,
    ToOption,
    UrlOption,
)
from laneway_center.cli.output import Column, Output, clock, gathered, say, show, show_table

app = typer.Typer(add_completion=False, rich_markup_mode=None)
COLUMNS = (
    Column("at", "at"),
    Column("operator", "operator", cut=True),
    Column("action", "action"),
    Column("subject", "subject", folds=True),
    Column("why", "why", folds=True),
)


@app.command()
def audit(
    *,
    by: Annotated[str | None, typer.Option("--by", metavar="NAME", help="Only this operator's.")] = None,
    action: Annotated[str | None, typer.Option(metavar="NAME", help="Only these, such as letter.replay.")] = None,
    subject: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Only what was done to this: an id, a lane's key.")
    ] = None,
    since: FromOption = None,
    until: ToOption = None,
    limit: LimitOption = 50,
    url: UrlOption = CENTER_URL,
    tenant: TenantOption = 1,
    output: OutputOption = Output.TABLE,
) -> None:
    """What operators did, and why.

    Newest first; --output json has what it was before and after.
    """
    where = {"operator": by, "action": action, "subject": subject, "from": since, "to": until}
    with Center(url, tenant) as center:
        found = gathered("actions", center.pages("/audit", "actions", limit, **where))
    if output is Output.JSON:
        show({"actions": found})
    elif found:
        show_table(COLUMNS, [each | {"at": clock(each["at"])} for each in found])
    else:
        say("No action matches.")
