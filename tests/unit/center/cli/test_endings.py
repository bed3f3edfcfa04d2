"""However a command ends: the right exit code, and one line."""

import asyncio
import importlib
import pkgutil
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

import laneway_center
import laneway_shared
from laneway_center.cli import broker_options, options
from laneway_center.cli.endings import EXIT_CODES
from laneway_center.cli.main import GROUPS
from laneway_center.settings import CenterSettings
from laneway_local.services import script
from laneway_shared.errors import LanewayError
from laneway_shared.settings import ServiceSettings
from support.command_line import laneway as in_a_process
from support.source_tree import CHECKOUT

from .conftest import problem

if TYPE_CHECKING:
    from .conftest import Run, StandIn

ID = "0190c3e2-7b1c-7000-8000-3f2a9d5c1e77"
WHO = ("--operator", "duty", "--reason", "to see")
REGISTRY = str(CHECKOUT / "infra/local/src/laneway_local/demo.yaml")
ASKING_THE_CENTER = [
    ("command", "submit", "--device", "1", "--point", "2"),
    ("command", "get", ID),
    ("command", "list"),
    ("command", "cancel", ID),
    ("lane", "list"),
    ("lane", "explain", "device:1"),
    ("lane", "hold", "device:1", *WHO),
    ("lane", "release", "device:1", *WHO),
    ("lane", "skip", "device:1", *WHO),
    ("dead", "list"),
    ("dead", "show", "17"),
    ("dead", "replay", "17", *WHO),
    ("dead", "replay", "--driver", "mqtt", *WHO),
    ("dead", "discard", "17", *WHO),
    ("review", "list"),
    ("review", "show", ID),
    ("review", "resolve", ID, "--as", "FAILED", *WHO),
    ("review", "requeue", ID, *WHO),
    ("driver", "list"),
    ("registry", "import", REGISTRY),
    ("registry", "export"),
    ("registry", "diff", REGISTRY),
    ("audit",),
]


@pytest.mark.parametrize("arguments", ASKING_THE_CENTER, ids=" ".join)
def test_with_the_center_down_it_is_exit_code_3(arguments: tuple[str, ...], laneway: "Run", center: "StandIn") -> None:
    center.down = True
    ended = laneway(*arguments, LANEWAY_URL="http://center.test:8080")
    assert ended.code == 3
    assert "laneway: CENTER_AWAY: the center at http://center.test:8080 can't be reached" in ended.errors
    assert "Traceback" not in ended.errors


@pytest.mark.parametrize("arguments", ASKING_THE_CENTER, ids=" ".join)
def test_what_the_center_refuses_is_exit_code_1_with_its_code(
    arguments: tuple[str, ...], laneway: "Run", center: "StandIn"
) -> None:
    assert (ended := laneway(*arguments)).code == 1
    assert "laneway: THING_UNKNOWN: no such thing is known\n" in ended.errors
    assert all(request.headers["X-Tenant-Id"] == "1" for request in center.asked)


@pytest.mark.parametrize("arguments", ASKING_THE_CENTER, ids=" ".join)
def test_what_is_no_center_is_exit_code_3(
    arguments: tuple[str, ...], laneway: "Run", center: "StandIn", monkeypatch: pytest.MonkeyPatch
) -> None:
    page = httpx.Response(200, html="<html>Welcome</html>")
    monkeypatch.setattr(type(center), "handle", lambda *_: page)
    ended = laneway(*arguments)
    assert ended.code == 3
    assert "is no center of Laneway (HTTP 200, text/html)" in ended.errors.splitlines()[0]


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (httpx.Response(502, html="<html>"), "no center answers behind"),
        (httpx.Response(503, text="no"), "no center answers behind"),
        (httpx.Response(200, content=b"[", headers={"content-type": "application/json"}), "is no center"),
        (
            problem(404, "NOT_FOUND", "Not Found"),
            "is no center of Laneway (HTTP 404, application/problem+json for /lanes)",
        ),
        (httpx.Response(400, json={"code": "SOME", "detail": "of another"}), "is no center of Laneway (HTTP 400"),
        (httpx.Response(422, json={"detail": []}), "is no center of Laneway (HTTP 422"),
    ],
)
def test_who_answers_instead_of_the_center_is_exit_code_3(
    answer: httpx.Response, says: str, laneway: "Run", center: "StandIn"
) -> None:
    center.answers["GET /lanes"] = answer
    ended = laneway("lane", "list")
    assert ended.code == 3
    assert says in ended.reason


def test_a_center_without_its_database_is_not_called_away(laneway: "Run", center: "StandIn") -> None:
    detail = "PostgreSQL is away; repeat with the same commandId"
    center.answers["GET /lanes"] = problem(503, "DATABASE_AWAY", detail)
    ended = laneway("lane", "list", LANEWAY_URL="http://center.test")
    assert ended.code == 3
    assert (
        ended.reason == "laneway: DATABASE_AWAY: the center at http://center.test doesn't reach its PostgreSQL in time"
    )
    center.answers["POST /commands"] = problem(503, "DATABASE_AWAY", detail)
    ended = laneway("command", "submit", "--device", "1", "--point", "2", "--id", ID)
    assert (ended.code, ended.reason.split()[1]) == (3, "DATABASE_AWAY:")
    assert f"safe to repeat with --id {ID}" in ended.reason


def test_a_center_that_does_not_answer_in_time_is_away(laneway: "Run", center: "StandIn") -> None:
    def late(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadTimeout("", request=request)

    center.answers["POST /commands"] = late
    ended = laneway("command", "submit", "--device", "1", "--point", "2", "--id", ID)
    assert ended.code == 3
    assert "doesn't answer in time" in ended.reason
    assert f"safe to repeat with --id {ID}" in ended.reason


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ("lane", "list", "--url", "center:8080"),
            "(env var: LANEWAY_URL, LANEWAY_API_URL): doesn't begin with http://",
        ),
        (("lane", "list", "--url", "http://["), "USAGE"),
        (("lane", "list", "--tenant", "0"), "--tenant"),
        (("lane", "explain"), "Missing argument 'LANE'"),
        (("lane", "hold", "device:1", "--reason", "x"), "who acts?"),
        (("lane", "hold", "device:1", "--operator", "me"), "why?"),
        (("lane", "hold", "device:1", "--operator", "me", "--reason", " "), "why?"),
        (("lane", "hold", "device:1", "--operator", "m\n", "--reason", "x"), "1 to 64 printable"),
        (("lane", "hold", "device:1", "--operator", "me", "--reason", "x" * 501), "more than 500"),
        (("command", "submit"), "--device N and --point N"),
        (("command", "get", "a/b"), "is no id"),
        (("command", "get"), "Missing argument 'ID'"),
        (("command", "list", "--status", "NOWHERE"), "NOWHERE"),
        (("command", "list", "--from", "yesterday"), "is no time"),
        (("dead", "show", "x"), "ID"),
        (("dead", "replay", *WHO), "which ones?"),
        (("dead", "replay", "17", "--driver", "mqtt", *WHO), "not both"),
        (("dead", "replay", "17"), "who acts?"),
        (("dead", "replay", "17", "--rate", "0", *WHO), "--rate"),
        (("dead", "list", "--reason", "boredom"), "boredom"),
        (("review", "resolve", ID, *WHO), "what was it?"),
        (("review", "resolve", ID, "--as", "MAYBE", *WHO), "MAYBE"),
        (("registry", "import", "/nowhere.yaml"), "/nowhere.yaml: No such file"),
        (("registry", "diff", __file__), "neither YAML nor JSON"),
        (("audit", "--limit", "0"), "--limit"),
        (("topology", "export", "--to-file", "/nowhere/file"), "/nowhere/file: No such file"),
        (("nix",), "No such command 'nix'"),
        (("--nix",), "--nix"),
        (("dead", "nix"), "No such command 'nix'"),
    ],
)
def test_wrong_usage_is_exit_code_2(arguments: tuple[str, ...], says: str, laneway: "Run", center: "StandIn") -> None:
    ended = laneway(*arguments)
    assert (ended.code, ended.out) == (2, "")
    assert ended.reason.startswith("laneway: USAGE: ")
    assert says in ended.reason
    assert not [request for request in center.asked if request.method == "POST"]


@pytest.mark.parametrize("name", ["", *(set(GROUPS) - {"verify", "audit"})])
def test_without_arguments_a_group_shows_its_help(name: str, laneway: "Run") -> None:
    ended = laneway(*filter(None, [name]))
    assert (ended.code, ended.out) == (2, "")
    assert ended.errors.startswith("Usage: laneway")
    assert max(map(len, ended.errors.splitlines())) <= 80


def test_the_version_is_said(laneway: "Run") -> None:
    assert laneway("--version").out == f"laneway {laneway_center.__version__}\n"


@pytest.mark.parametrize(("before", "says"), [(1, "past a review, which stays open"), (0, "past its head: ")])
def test_skipping_says_what_becomes_of_a_review(before: int, says: str, laneway: "Run", center: "StandIn") -> None:
    lane = {"laneKey": "device:1", "state": "READY", "depth": 3, "reviewHolds": 0}
    center.answers["GET /lanes/device:1"] = lane | {"reviewHolds": before}
    center.answers["POST /lanes/device:1/skip"] = lane
    ended = laneway("lane", "skip", "device:1", *WHO)
    assert ended.code == 0
    assert says in ended.out


async def test_help_imports_no_group_and_none_of_what_they_need() -> None:
    ended = await in_a_process("--help", PYTHONPROFILEIMPORTTIME="1")
    assert ended.code == 0
    for heavy in ("httpx", "rich.console", "sqlalchemy", "aio_pika", "pydantic", "yaml", "structlog"):
        assert f" {heavy}\n" not in ended.errors


def test_every_group_has_its_help_and_is_complete(laneway: "Run") -> None:
    files = {path.stem for path in Path(laneway_center.__path__[0], "cli").glob("*.py")}
    assert files >= set(GROUPS)
    for name, says in GROUPS.items():
        ended = laneway(name, "--help")
        assert ended.code == 0
        assert says in " ".join(ended.out.split()), name


@pytest.mark.parametrize("target", ["| true", "> /dev/full"])
async def test_output_that_nobody_takes_is_no_bug(target: str) -> None:
    command = f"set -o pipefail; {script('laneway')} topology export {target}"
    process = await asyncio.create_subprocess_exec(
        "bash", "-c", command, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
    )
    _, errors = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 1
    assert errors in {b"", b"laneway: OUTPUT: No space left on device\n"}


async def test_completion_knows_groups_commands_and_values() -> None:
    async def completed(words: str, at: int) -> list[str]:
        given = {"_LANEWAY_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(at)}
        return (await in_a_process(**given)).out.split()

    assert await completed("laneway ", 1) == list(GROUPS)
    assert await completed("laneway de", 1) == ["dead"]
    assert await completed("laneway dead dr", 2) == ["drain"]
    assert await completed("laneway dead list --output ", 4) == ["table", "json"]


def test_exit_codes_belong_to_errors_that_exist() -> None:
    codes = {"USAGE"}
    for package in (laneway_center, laneway_shared):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if ".migrations" not in module.name and not module.name.endswith("main"):
                importlib.import_module(module.name)
    found = [LanewayError]
    for error in found:
        codes.add(error.code)
        found += error.__subclasses__()
    assert set(EXIT_CODES) <= codes


def test_defaults_are_those_of_the_services() -> None:
    fields = ServiceSettings.model_fields
    assert fields["amqp_url"].default == broker_options.AMQP_URL
    assert fields["topology_prefix"].default == broker_options.PREFIX
    center = CenterSettings.model_fields
    assert f"http://{center['http_host'].default}:{center['http_port'].default}" == options.CENTER_URL
