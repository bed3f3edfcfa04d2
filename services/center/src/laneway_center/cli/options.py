"""Options that many commands have."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated
from urllib.parse import urlsplit

import typer

from laneway_center.cli.endings import UsageError
from laneway_center.cli.output import Output

CENTER_URL = "http://127.0.0.1:8080"
LONGEST_DEADLINE_S = 86_400.0
LONGEST_REASON = 500


def http_url(url: str | None) -> str | None:
    """Refuse what is no address of an HTTP server."""
    if url is not None and not url.startswith(("http://", "https://")):
        raise typer.BadParameter("doesn't begin with http:// or https://")
    try:
        host = urlsplit(url or "http://none").hostname
    except ValueError:
        host = None
    if not host:
        raise typer.BadParameter("is no URL such as http://127.0.0.1:8080")
    return url


def instant(text: str | None) -> str | None:
    """A time as the center takes it; without a zone it is UTC."""
    if text is None:
        return None
    if ago := re.fullmatch(r"(\d{1,6})([smhd])", text):
        units = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
        return (datetime.now(UTC) - timedelta(**{units[ago[2]]: int(ago[1])})).isoformat()
    try:
        said = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"{text} is no time such as 2026-01-31T17:00Z or 30m") from None
    return (said if said.tzinfo else said.replace(tzinfo=UTC)).isoformat()


@dataclass(frozen=True, kw_only=True)
class Acting:
    """Who changes something, and why."""

    operator: str
    reason: str


def acting(operator: str | None, reason: str | None, *, dry_run: bool = False) -> Acting:
    """Both are required where something is changed.

    Raises:
        UsageError: says which one is missing.
    """
    if dry_run:
        return Acting(operator=operator or "nobody", reason=reason or "dry run")
    if not operator:
        raise UsageError("who acts? Give --operator NAME, or set LANEWAY_OPERATOR")
    if reason is None or not reason.strip():
        raise UsageError("why? Give --reason TEXT; it is recorded")
    if len(reason) > LONGEST_REASON:
        raise UsageError(f"--reason has more than {LONGEST_REASON} characters")
    return Acting(operator=operator, reason=reason)


UrlOption = Annotated[
    str,
    typer.Option(
        "--url", envvar=["LANEWAY_URL", "LANEWAY_API_URL"], metavar="URL", callback=http_url, help="The center."
    ),
]
TenantOption = Annotated[
    int, typer.Option(min=1, max=2**63 - 1, envvar="LANEWAY_TENANT", metavar="N", help="Whose data it is about.")
]
OutputOption = Annotated[Output, typer.Option(help="Form of the result.")]
OperatorOption = Annotated[
    str | None,
    typer.Option(envvar="LANEWAY_OPERATOR", metavar="NAME", help="Who acts; required, and recorded."),
]
ReasonOption = Annotated[str | None, typer.Option(metavar="TEXT", help="Why; required, and recorded.")]
LimitOption = Annotated[int, typer.Option(min=1, max=100_000, metavar="N", help="Entries shown, at most.")]
FromOption = Annotated[
    str | None,
    typer.Option("--from", metavar="TIME", callback=instant, help="Not before: 2026-01-31T17:00Z, or 30m, 2h, 1d ago."),
]
ToOption = Annotated[str | None, typer.Option("--to", metavar="TIME", callback=instant, help="Before, said likewise.")]
ExpireInOption = Annotated[
    float | None,
    typer.Option(
        min=0.001,
        max=LONGEST_DEADLINE_S,
        metavar="S",
        help="Seconds until it may no longer start; the center's default if missing.",
    ),
]
