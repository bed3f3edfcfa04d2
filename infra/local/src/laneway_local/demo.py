"""`make demo`: commands of several kinds, each with its way to its final state."""

import os
import shlex
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.table import Table

from laneway_local import services
from laneway_local.stack import Stack, running

LOCK, BACK_DOOR, BOILER = 1024, 1025, 1026
SWITCH, VOLUME, BATTERY, UNLOCK = 2048, 2049, 2050, 2051
ANSWER_WITHIN_S = 60.0
OK, WRONG = 0, 1


class UnexpectedError(Exception):
    """The system did something else than the demo says it does."""


@dataclass(frozen=True)
class Demo:
    """The running stack, as the scenes use it."""

    stack: Stack
    center: httpx.Client
    simulator: httpx.Client
    console: Console

    def submit(self, device: int, point: int, value: Any = None, **fields: Any) -> httpx.Response:
        """Submit a WRITE, or a READ without value."""
        body = {"deviceId": device, "pointId": point, "type": "READ" if value is None else "WRITE"} | fields
        return self.center.post("/commands", json=body if value is None else body | {"value": value})

    def accepted(self, answer: httpx.Response) -> str:
        """Return the id of an accepted command."""
        if answer.status_code != httpx.codes.ACCEPTED:
            raise UnexpectedError(f"202 was due, {answer.status_code} came: {answer.text}")
        return str(answer.json()["commandId"])

    def refused(self, answer: httpx.Response, code: str) -> None:
        """Show a refusal, and check that it is the expected one."""
        problem = answer.json()
        if problem.get("code") != code:
            raise UnexpectedError(f"{code} was due, {answer.status_code} came: {answer.text}")
        self.console.print(f"   HTTP {answer.status_code} [bold]{code}[/]: {problem['detail']}")

    def ended(self, command_id: str, *expected: str) -> dict[str, Any]:
        """Wait for a command's end and show its way there."""
        deadline = time.monotonic() + ANSWER_WITHIN_S
        while True:
            command: dict[str, Any] = self.center.get(f"/commands/{command_id}").json()
            if command["final"] or command["status"] == "MANUAL_REVIEW":
                break
            if time.monotonic() > deadline:
                raise UnexpectedError(f"{command_id} is still {command['status']} after {ANSWER_WITHIN_S:g} s")
            time.sleep(0.05)
        self.show(command)
        if command["status"] not in expected:
            raise UnexpectedError(f"{command_id} ended as {command['status']}, not {' or '.join(expected)}")
        return command

    def show(self, command: dict[str, Any]) -> None:
        """Print the timeline of a command."""
        events = self.center.get(f"/commands/{command['commandId']}/events").json()["events"]
        start = datetime.fromisoformat(events[0]["at"])
        table = Table(box=None, padding=(0, 2, 0, 1), show_header=False)
        for event in events:
            moved = event["from"] != event["to"]
            after = (datetime.fromisoformat(event["at"]) - start).total_seconds()
            state = f"[bold]{event['to']}[/]" if moved else f"[dim]{event['to']}[/]"
            table.add_row("", f"+{after:7.3f} s", state, event["kind"], f"attempt {event['attempt']}", event["note"])
        self.console.print(table)
        value = "" if command["responseValue"] is None else f", the device reports {command['responseValue']!r}"
        error = "" if command["errorCode"] is None else f", {command['errorCode']}: {command['errorMessage']}"
        self.console.print(f"   {command['commandId']}: [bold]{command['status']}[/]{value}{error}")

    def operator(self, *arguments: str) -> None:
        """Run the operator's command, and show it with what it says."""
        self.console.print(f"   [bold]$ laneway {shlex.join(arguments)}[/]")
        program = Path(sys.executable).with_name("laneway")
        known = os.environ | {"LANEWAY_URL": str(self.center.base_url), "LANEWAY_OPERATOR": "demo", "COLUMNS": "110"}
        done = subprocess.run(  # noqa: S603 - our own program
            [program, *arguments], env=known, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        for line in (done.stdout + done.stderr).splitlines():
            self.console.print(f"   {line}", markup=False)
        if done.returncode != 0:
            raise UnexpectedError(f"laneway {arguments[0]} {arguments[1]} ended with {done.returncode}")

    def executions(self, serial: str, command_id: str) -> int:
        """Return how often a lock executed a command, by its own journal."""
        journal = self.simulator.get(f"/devices/{serial}/journal", params={"event": "executed"}).json()
        return sum(entry["commandId"] == command_id for entry in journal["entries"])


def a_write(demo: Demo) -> None:
    """A write to a door lock on MQTT."""
    command_id = demo.accepted(demo.submit(LOCK, SWITCH, "1"))
    demo.ended(command_id, "SUCCESS")
    times = demo.executions("A100", command_id)
    demo.console.print(f"   the lock's own journal: executed {times} time")
    if times != 1:
        raise UnexpectedError(f"the lock executed it {times} times")


def a_read(demo: Demo) -> None:
    """A read of the same lock."""
    demo.ended(demo.accepted(demo.submit(LOCK, SWITCH)), "SUCCESS")


def a_virtual_device(demo: Demo) -> None:
    """A write to a device that answers at once, through another driver service."""
    demo.ended(demo.accepted(demo.submit(BOILER, SWITCH, 21.5)), "SUCCESS")


def a_refused_value(demo: Demo) -> None:
    """Values that can't be: the center says no before anything is stored."""
    demo.refused(demo.submit(LOCK, VOLUME, 101), "VALUE_REFUSED")
    demo.refused(demo.submit(LOCK, VOLUME, "loud"), "VALUE_REFUSED")
    demo.refused(demo.submit(LOCK, BATTERY, "1"), "POINT_READ_ONLY")


def a_refusing_device(demo: Demo) -> None:
    """A lock that says no."""
    demo.simulator.put("/devices/A101/behaviour", json={"refuse": True, "times": 1}).raise_for_status()
    demo.ended(demo.accepted(demo.submit(BACK_DOOR, SWITCH, "1")), "FAILED")


def a_duplicate_submit(demo: Demo) -> None:
    """The same command submitted twice: one command. Another one under the same id: refused."""
    command_id = str(uuid.uuid4())
    demo.accepted(demo.submit(LOCK, SWITCH, "0", commandId=command_id))
    again = demo.submit(LOCK, SWITCH, "0", commandId=command_id)
    demo.console.print(f"   again: HTTP {again.status_code}, the same command, now {again.json()['status']}")
    demo.refused(demo.submit(LOCK, SWITCH, "1", commandId=command_id), "COMMAND_ID_REUSED")
    demo.ended(command_id, "SUCCESS")
    if demo.executions("A100", command_id) != 1:
        raise UnexpectedError("the lock executed it more than once")


def a_silent_device(demo: Demo) -> None:
    """A lock that never answers. A safe write times out; of an unlock nobody knows: a person decides."""
    demo.simulator.put("/devices/A100/behaviour", json={"silent": "before", "times": 1}).raise_for_status()
    demo.simulator.put("/devices/A101/behaviour", json={"silent": "after", "times": 1}).raise_for_status()
    safe = demo.accepted(demo.submit(LOCK, SWITCH, "1", expireIn=3))
    unsafe = demo.accepted(demo.submit(BACK_DOOR, UNLOCK, "1", expireIn=3))
    demo.ended(safe, "TIMEOUT")
    demo.ended(unsafe, "MANUAL_REVIEW")
    if demo.executions("A101", unsafe) != 1:
        raise UnexpectedError("the unlock was repeated")


def a_stopped_driver(demo: Demo) -> None:
    """A driver that is killed: what is on its way ends in time; when it has stopped, submits are refused."""
    demo.stack.kill_service("driver-virtual")
    command_id = demo.accepted(demo.submit(BOILER, SWITCH, 30, expireIn=3))
    demo.ended(command_id, "TIMEOUT", "EXPIRED")
    demo.stack.restart_service("driver-virtual")
    demo.ended(_when_online(demo, lambda: demo.submit(BOILER, SWITCH, 40)), "SUCCESS")
    demo.stack.stop_service("driver-virtual")
    _until(lambda: demo.submit(BOILER, SWITCH, 50).status_code == httpx.codes.CONFLICT)
    demo.refused(demo.submit(BOILER, SWITCH, 50), "DRIVER_OFFLINE")


def a_dead_letter(demo: Demo) -> None:
    """What ended badly waits for an operator: a dead letter, shown and replayed from the command line."""
    demo.stack.restart_service("driver-virtual")
    ended = demo.center.get("/commands", params={"deviceId": BOILER, "status": ["TIMEOUT", "EXPIRED"]}).json()
    command_id = str(ended["commands"][0]["commandId"])
    demo.operator("dead", "list", "--command", command_id)
    _when_online(demo, lambda: demo.submit(BOILER, SWITCH, 60))
    demo.operator("dead", "replay", "--command", command_id, "--expire-in", "30", "--reason", "the driver is back")
    demo.ended(command_id, "SUCCESS")
    demo.operator("dead", "replay", "--command", command_id, "--reason", "once more")


SCENES = (
    a_write,
    a_read,
    a_virtual_device,
    a_refused_value,
    a_refusing_device,
    a_duplicate_submit,
    a_silent_device,
    a_stopped_driver,
    a_dead_letter,
)


def main(directory: Path) -> int:
    """Play all scenes on a stack of its own, which is gone afterwards. Return the exit code."""
    console = Console(highlight=False, width=None if Console().is_terminal else 120)
    console.print("Starting RabbitMQ, PostgreSQL, Mosquitto and Laneway's services ...")
    began = time.monotonic()
    with running(Stack(directory), services.all_services()) as stack:
        console.print(f"... all ready after {time.monotonic() - began:.1f} s")
        center = httpx.Client(base_url=stack.urls["LANEWAY_API_URL"], timeout=10, trust_env=False)
        simulator = httpx.Client(base_url=stack.urls["LANEWAY_SIMULATOR_URL"], timeout=10, trust_env=False)
        with center, simulator:
            demo = Demo(stack, center, simulator, console)
            try:
                _play(demo)
            except (UnexpectedError, httpx.HTTPError) as error:
                console.print(f"[bold red]Not as it should be:[/] {error}; logs are in {directory / 'logs'}")
                return WRONG
    console.print("\nAll as it should be. Everything has been stopped.")
    return OK


def _play(demo: Demo) -> None:
    registry = files(__package__).joinpath("demo.yaml").read_bytes()
    as_yaml = {"content-type": "application/yaml"}
    demo.center.post("/registry/import", content=registry, headers=as_yaml).raise_for_status()
    _until(lambda: _has_listener(demo))
    for number, scene in enumerate(SCENES, 1):
        demo.console.print(f"\n[bold]{number}. {(scene.__doc__ or '').strip()}[/]")
        scene(demo)


def _has_listener(demo: Demo) -> bool:
    drivers = {each["name"]: each for each in demo.center.get("/registry/drivers").json()}
    kinds = {each["kind"] for each in drivers["mqtt"]["instances"] if each["state"] == "online"}
    return drivers["virtual"]["online"] and kinds == {"driver", "ack-listener"}


def _when_online(demo: Demo, submit: Callable[[], httpx.Response]) -> str:
    answer = submit()

    def is_accepted() -> bool:
        nonlocal answer
        answer = answer if answer.status_code == httpx.codes.ACCEPTED else submit()
        return answer.status_code == httpx.codes.ACCEPTED

    _until(is_accepted)
    return demo.accepted(answer)


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + ANSWER_WITHIN_S
    while not condition():
        if time.monotonic() > deadline:
            raise UnexpectedError(f"nothing came of it within {ANSWER_WITHIN_S:g} s")
        time.sleep(0.1)
