"""Starts and stops Laneway on this machine: RabbitMQ, PostgreSQL, Mosquitto and the services, private to a checkout."""

import os
import signal
import sys
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn

import typer

from laneway_local import packages, services
from laneway_local import stack as stacks
from laneway_local.errors import PackagesMissingError, StackError
from laneway_local.stack import Stack

INTERRUPTED = 130
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__)

Name = Annotated[str, typer.Argument(help="Name of a service, as `status` shows it.")]


def directory() -> Path:
    """Return `.local` of the checkout the command was called in."""
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / "infra" / "local" / "pyproject.toml").exists():
            return folder / ".local"
    return here / ".local"


@app.command()
def up(
    *,
    infra_only: Annotated[bool, typer.Option("--infra-only", help="Only RabbitMQ, PostgreSQL and Mosquitto.")] = False,
    centers: Annotated[int, typer.Option(min=1, max=16, help="Number of centers.")] = 1,
    drivers: Annotated[int, typer.Option(min=1, max=16, help="Number of replicas of each driver.")] = 1,
) -> None:
    """Start the stack and leave it running; what has died of a running one is started again."""
    stack = Stack(directory())
    with stack.state.held():
        state = stack.state.read()
        wanted = () if infra_only else services.all_services(centers=centers, drivers=drivers)
        is_whole = state.complete and not stack.missing() and {one.name for one in wanted} <= set(state.services)
        if not is_whole:
            packages.ensure(os.environ)
            stacks.up(stack, wanted)
    typer.echo(f"Laneway is running{' already' if is_whole else ''}: {_addresses(stack)}")
    typer.echo(f"Settings are in {stack.directory / 'stack.env'}; `make down` stops it.")


@app.command()
def down() -> None:
    """Stop exactly what was started here and remove its data; logs stay."""
    stack = Stack(directory())
    with stack.state.held():
        ran = bool(stack.state.read().children)
        stack.down()
    stacks.sweep(directory())
    typer.echo("Stopped. Logs are kept." if ran else "Nothing of this checkout was running.")


@app.command()
def status() -> None:
    """List the processes of the stack; exit code 1 when one of them is not running."""
    stack = Stack(directory())
    state = stack.state.read()
    for name in sorted({*state.children, *state.services}):
        record, port = state.children.get(name), state.ports.get(name)
        shown = f"pid {record.who.pid}" if record and stack.processes.is_alive(name) else "not running"
        typer.echo(f"{name:18} {shown:14} {f'port {port}' if port else ''}".rstrip())
    if not state.children:
        typer.echo("Nothing of this checkout is running.")
    if not state.complete or stack.missing():
        raise typer.Exit(1)


@app.command()
def stop(name: Name) -> None:
    """Ask one service of the running stack to end, and wait for it."""
    stack = _running_stack(name)
    ended = stack.stop_service(name)
    typer.echo(f"{name} has ended." if ended else f"{name} did not end in time and was killed.")


@app.command()
def kill(name: Name) -> None:
    """End one service of the running stack at once (SIGKILL)."""
    _running_stack(name).kill_service(name)
    typer.echo(f"{name} was killed.")


@app.command(name="start")
def start_one(name: Name) -> None:
    """Start one service of the running stack, such as driver-mqtt, or one more replica of it, such as center-2."""
    stack = _running_stack(name)
    service = services.by_name(name)
    if service is None:
        raise StackError(f"There is no service {name}.")
    stack.start_service(service)
    stacks.write_environment(stack)
    typer.echo(f"{name} is running.")


@app.command(name="packages")
def install_packages(
    *,
    tests: Annotated[
        bool, typer.Option("--tests", help="Also what only some tests need, if that is possible.")
    ] = False,
) -> None:
    """Install the Debian packages the stack needs, if they are missing and this user may."""
    packages.ensure(os.environ)
    if tests:
        try:
            packages.ensure(os.environ, packages.TEST_PACKAGES)
        except PackagesMissingError as error:
            typer.echo(f"Some tests will be skipped: {error}", err=True)


@app.command()
def demo() -> None:
    """Show commands on their way to devices, on a stack of its own."""
    packages.ensure(os.environ)
    raise typer.Exit(import_module("laneway_local.demo").main(directory() / "demo"))


def main() -> NoReturn:
    """Run the command line: errors in one line, exit code 1; 130 when interrupted."""
    for number in _SIGNALS:
        signal.signal(number, _interrupt)
    try:
        app()
    except StackError as error:
        typer.echo(f"laneway-local: {error}", err=True)
        sys.exit(1)
    except _InterruptedError:
        typer.echo("laneway-local: interrupted; what was started has been stopped.", err=True)
        sys.exit(INTERRUPTED)
    sys.exit(0)


class _InterruptedError(BaseException):
    """A signal asked for the end. Not a KeyboardInterrupt, which the command line library would take for itself."""


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    del frame
    for each in _SIGNALS:  # the end has begun and is bounded; asking again must not cut it short
        signal.signal(each, signal.SIG_IGN)
    raise _InterruptedError(number)


def _running_stack(name: str) -> Stack:
    stack = Stack(directory())
    if not stack.state.read().complete:
        raise StackError(f"{name}: the stack is not running; start it with `make up`.")
    return stack


def _addresses(stack: Stack) -> str:
    urls = stack.urls
    shown = [f"{what} {urls[name]}" for what, name in stacks.SHOWN.items() if name in urls]
    return ", ".join(shown) or "RabbitMQ, PostgreSQL and Mosquitto only"
