"""Options that many commands have."""

from typing import Annotated

import typer

from laneway_center.cli.output import Output

CENTER_URL = "http://127.0.0.1:8080"
LONGEST_DEADLINE_S = 86_400.0


def http_url(url: str | None) -> str | None:
    """Refuse what is no address of an HTTP server."""
    if url is not None and not url.startswith(("http://", "https://")):
        raise typer.BadParameter("doesn't begin with http:// or https://")
    return url


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
    str,
    typer.Option(envvar="LANEWAY_OPERATOR", metavar="NAME", help="Who acts; it is recorded.", show_default=False),
]
ReasonOption = Annotated[str, typer.Option(metavar="TEXT", help="Why; it is recorded.", show_default=False)]
ExpireInOption = Annotated[
    float | None,
    typer.Option(
        min=0.001,
        max=LONGEST_DEADLINE_S,
        metavar="S",
        help="Seconds until it may no longer start; the center's default if missing.",
    ),
]
