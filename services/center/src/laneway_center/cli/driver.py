"""`laneway driver`: driver services and ack-listeners, as they last said."""

from collections.abc import Iterable, Mapping
from typing import Any

from laneway_center.cli.client import Center
from laneway_center.cli.endings import group
from laneway_center.cli.options import CENTER_URL, OutputOption, TenantOption, UrlOption
from laneway_center.cli.output import Column, Output, age, say, show, show_table

app = group("Drivers and ack-listeners, as they last said.")
COLUMNS = (
    Column("service", "service"),
    Column("kind", "kind"),
    Column("instance", "instance"),
    Column("state", "state"),
    Column("version", "version"),
    Column("busy", "busy", right=True),
    Column("clock", "clock", right=True),
    Column("seen", "seen", right=True),
)


@app.callback()
def driver() -> None:
    """Drivers and ack-listeners, as they last said."""


@app.command(name="list")
def list_(*, url: UrlOption = CENTER_URL, tenant: TenantOption = 1, output: OutputOption = Output.TABLE) -> None:
    """List all instances of drivers and listeners.

    busy: calls in flight of its capacity; clock: how far it is off; seen: how long ago it was last heard.
    """
    with Center(url, tenant) as center:
        drivers = center.get("/registry/drivers")
        instances = center.get("/registry/instances")
    if output is Output.JSON:
        show({"drivers": drivers, "instances": instances})
    elif drivers or instances:
        show_table(COLUMNS, list(_rows(drivers, instances)))
    else:
        say("No driver is registered, and none was heard of.")


def _rows(drivers: Iterable[Mapping[str, Any]], instances: Iterable[Mapping[str, Any]]) -> Iterable[dict[str, Any]]:
    known = {each["name"]: each for each in drivers}
    heard = sorted(instances, key=lambda each: (each["service"], each["kind"], each["instance"]))
    for instance in heard:
        named = known.get(instance["service"])
        marks = []
        if instance["kind"] != "center":
            marks = ["unregistered"] if named is None else [] if named["enabled"] else ["disabled"]
        off = instance["clockOffsetMs"]
        yield {
            **instance,
            "state": " ".join([instance["state"], *marks]),
            "busy": f"{instance['inFlight']}/{instance['capacity']}" if instance["capacity"] else None,
            "clock": None if off is None else f"{off:+.0f}ms",
            "seen": age(instance["lastSeen"]),
        }
    for name in sorted(known.keys() - {each["service"] for each in heard if each["kind"] == "driver"}):
        yield {"service": name, "kind": "driver", "state": "none" if known[name]["enabled"] else "none disabled"}
