"""`laneway registry`: drivers, devices and points as one document."""

import sys
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer
import yaml
from pydantic import ValidationError

from laneway_center.api.registry_bodies import RegistryDocument
from laneway_center.cli.client import Center
from laneway_center.cli.endings import FAILED, OK, UsageError, group
from laneway_center.cli.options import CENTER_URL, OutputOption, TenantOption, UrlOption
from laneway_center.cli.output import Column, Output, note, progress, say, show, show_table, write_file

app = group("Drivers, devices and points as one document.")
COLUMNS = (
    Column("", "sign"),
    Column("what", "what"),
    Column("field", "field"),
    Column("center", "center", folds=True),
    Column("file", "file", folds=True),
)
FileArgument = Annotated[
    Path, typer.Argument(dir_okay=False, metavar="FILE", help="YAML or JSON; - is standard input.", show_default=False)
]
"""Whether it exists is asked when it is read: typer would look for a file of the name `-`."""


class Form(StrEnum):
    """Forms of a document."""

    YAML = "yaml"
    JSON = "json"


def _read(file: Path) -> bytes:
    try:
        return sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror or error}") from None


@app.command(name="import")
def import_(
    file: FileArgument,
    *,
    operator: Annotated[
        str | None, typer.Option(envvar="LANEWAY_OPERATOR", metavar="NAME", help="Who acts; recorded if given.")
    ] = None,
    url: UrlOption = CENTER_URL,
    tenant: TenantOption = 1,
    output: OutputOption = Output.TABLE,
) -> None:
    """Store a document, all of it or nothing.

    What it doesn't name stays as it is.
    """
    document = _read(file)
    form = "json" if document.lstrip()[:1] == b"{" else "yaml"
    with Center(url, tenant, operator) as center, progress() as bars:
        bars.add_task("importing", total=None)
        stored = center.post_document("/registry/import", document, f"application/{form}")
    if output is Output.JSON:
        show(stored)
    else:
        say(f"Stored: {stored['drivers']:,} drivers, {stored['devices']:,} devices, {stored['points']:,} points.")


@app.command()
def export(
    *,
    form: Annotated[Form, typer.Option("--format", help="Form of the document.")] = Form.YAML,
    to: Annotated[
        Path | None, typer.Option("--to-file", dir_okay=False, metavar="FILE", help="Instead of standard output.")
    ] = None,
    url: UrlOption = CENTER_URL,
    tenant: TenantOption = 1,
    output: Annotated[Output, typer.Option(help="json is the same as --format json.")] = Output.TABLE,
) -> None:
    """Write it all, as import takes it.

    All drivers, and the tenant's devices with their points.
    """
    if output is Output.JSON:
        form = Form.JSON
    with Center(url, tenant) as center, progress() as bars:
        bars.add_task("exporting", total=None)
        document = center.get_document("/registry/export", format=form.value)
    if to is None:
        sys.stdout.buffer.write(document if document.endswith(b"\n") else document + b"\n")
        return
    write_file(to, document)
    note(f"{len(document):,} bytes in {to}")


@app.command()
def diff(
    file: FileArgument,
    *,
    url: UrlOption = CENTER_URL,
    tenant: TenantOption = 1,
    output: OutputOption = Output.TABLE,
) -> None:
    """Compare a document with what the center has.

    + only in the file, import would add it; - only in the center, import would leave it; ~ import would change it.
    Exit code 0: nothing differs; 1: something does.
    """
    wanted = _entries(_document(_read(file), "standard input" if str(file) == "-" else str(file)))
    with Center(url, tenant) as center, progress() as bars:
        bars.add_task("reading", total=None)
        held = _entries(_document(center.get_document("/registry/export", format="json"), "the center's registry"))
    found = list(_differences(held, wanted))
    if output is Output.JSON:
        show({"differences": found})
    elif found:
        show_table(COLUMNS, found)
    else:
        say("Nothing differs.")
    raise typer.Exit(FAILED if found else OK)


def _document(text: bytes, name: str) -> RegistryDocument:
    """As import reads it, with all defaults."""
    try:
        parsed = orjson.loads(text) if text.lstrip()[:1] == b"{" else yaml.load(text, Loader=_LOADER)  # noqa: S506 - safe
        return RegistryDocument.model_validate(parsed)
    except ValidationError as error:
        fault = error.errors(include_input=False, include_url=False, include_context=False)[0]
        where = ".".join(map(str, fault["loc"])) or "document"
        raise UsageError(f"{name}: {where}: {fault['msg']} ({error.error_count()} faults)") from None
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        raise UsageError(f"{name} is neither YAML nor JSON: {error}") from None


_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def _entries(document: RegistryDocument) -> dict[str, dict[str, Any]]:
    """Fields by what they belong to: `driver mqtt`, `device 7`, `device 7 point 1`."""
    said: dict[str, dict[str, Any]] = {}
    for driver in document.drivers:
        said[f"driver {driver.name}"] = driver.model_dump(by_alias=True, exclude={"name"})
    for device in document.devices:
        fields = device.model_dump(by_alias=True, exclude={"device_id", "points"})
        if fields["laneKey"] == f"device:{device.device_id}":
            fields["laneKey"] = None  # its own lane, said or not
        said[f"device {device.device_id}"] = fields
        for point in device.points:
            name = f"device {device.device_id} point {point.point_id}"
            said[name] = point.model_dump(by_alias=True, exclude={"point_id"})
    return said


def _differences(held: Mapping[str, Any], wanted: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for what in wanted:
        if what not in held:
            yield {"sign": "+", "what": what}
            continue
        for field, value in wanted[what].items():
            if held[what].get(field) != value:
                yield {"sign": "~", "what": what, "field": field, "center": held[what].get(field), "file": value}
    for what in held:
        if what not in wanted:
            yield {"sign": "-", "what": what}
