import io
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

if TYPE_CHECKING:
    from .conftest import Run, StandIn

HELD: dict[str, Any] = {
    "drivers": [{"name": "mqtt", "title": "Locks", "enabled": True}],
    "devices": [
        {
            "deviceId": 7, "deviceSn": "A7", "driver": "mqtt", "address": {"x": 1},
            "points": [{"pointId": 1, "name": "lock"}, {"pointId": 2, "name": "volume", "max": 100}],
        }
    ],
}  # fmt: skip


@pytest.fixture
def file(tmp_path: Path, center: "StandIn") -> Path:
    center.answers["GET /registry/export"] = HELD
    return tmp_path / "registry.yaml"


def test_the_same_in_other_words_does_not_differ(file: Path, laneway: "Run") -> None:
    file.write_text(
        "drivers: [{name: mqtt, title: Locks}]\n"
        "devices:\n- {deviceId: 7, laneKey: 'device:7', deviceSn: A7, driver: mqtt, address: {x: 1},\n"
        "   points: [{pointId: 2, name: volume, max: 100.0}, {pointId: 1, name: lock, access: RW}]}\n"
    )
    ended = laneway("registry", "diff", str(file))
    assert (ended.code, ended.out, ended.errors) == (0, "Nothing differs.\n", "")


def test_each_difference_is_a_line_with_both_values(file: Path, laneway: "Run") -> None:
    device = HELD["devices"][0] | {"address": {"x": 2}, "points": [{"pointId": 2, "name": "volume"}]}
    file.write_text(json.dumps({"devices": [device, {"deviceId": 8, "deviceSn": "A8", "driver": "mqtt"}]}))
    ended = laneway("registry", "diff", str(file), COLUMNS="")
    assert (ended.code, ended.errors) == (1, "")
    assert [line.split() for line in ended.out.splitlines()[1:]] == [
        ["~", "device", "7", "address", '{"x":1}', '{"x":2}'],
        ["~", "device", "7", "point", "2", "max", "100"],
        ["+", "device", "8"],
        ["-", "driver", "mqtt"],
        ["-", "device", "7", "point", "1"],
    ]
    said = json.loads(laneway("registry", "diff", str(file), "--output", "json").out)["differences"]
    assert said[0] == {"sign": "~", "what": "device 7", "field": "address", "center": {"x": 1}, "file": {"x": 2}}


def test_a_document_with_a_fault_is_wrong_usage(file: Path, laneway: "Run") -> None:
    file.write_text("devices: [{deviceId: 0, deviceSn: A, driver: mqtt}]")
    ended = laneway("registry", "diff", str(file))
    assert ended.code == 2
    assert "devices.0.deviceId: " in ended.reason


@pytest.mark.parametrize(("text", "form"), [("drivers: []", "yaml"), ('\n{"drivers": []}', "json")])
def test_import_sends_what_the_file_is(text: str, form: str, file: Path, laneway: "Run", center: "StandIn") -> None:
    center.answers["POST /registry/import"] = {"drivers": 0, "devices": 0, "points": 0}
    file.write_text(text)
    ended = laneway("registry", "import", str(file))
    assert (ended.code, ended.out) == (0, "Stored: 0 drivers, 0 devices, 0 points.\n")
    assert center.asked[0].headers["content-type"] == f"application/{form}"
    assert center.asked[0].content == text.encode()


def test_a_dash_is_standard_input(
    file: Path, laneway: "Run", center: "StandIn", monkeypatch: pytest.MonkeyPatch
) -> None:
    def given(text: str) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))

    center.answers["POST /registry/import"] = {"drivers": 0, "devices": 0, "points": 0}
    given("drivers: []")
    assert laneway("registry", "import", "-").code == 0
    assert center.asked[0].content == b"drivers: []"
    given(json.dumps(HELD))
    assert (laneway("registry", "diff", "-")).out == "Nothing differs.\n"
    given("devices: 7")
    assert laneway("registry", "diff", "-").reason.startswith("laneway: USAGE: standard input: devices: ")
    assert not file.exists()


def test_export_is_written_as_it_comes(file: Path, laneway: "Run", center: "StandIn") -> None:
    center.answers["GET /registry/export"] = httpx.Response(
        200, text="drivers: []\n", headers={"content-type": "application/yaml"}
    )
    assert laneway("registry", "export", "--to-file", str(file)).code == 0
    assert file.read_text() == "drivers: []\n"
    assert laneway("registry", "export").out == "drivers: []\n"
    assert [request.url.params["format"] for request in center.asked] == ["yaml", "yaml"]


@pytest.mark.parametrize("columns", ["", "80"])
def test_drivers_are_listed_with_every_instance(columns: str, laneway: "Run", center: "StandIn") -> None:
    said = {"version": "0.1.0", "profiles": [], "lastSeen": "2026-01-31T17:01:25Z"}
    center.answers |= {
        "GET /registry/drivers": [
            {"name": "mqtt", "title": "", "enabled": True, "online": True, "instances": []},
            {"name": "plc", "title": "", "enabled": False, "online": False, "instances": []},
        ],
        "GET /registry/instances": [
            {"service": "mqtt", "instance": "mqtt-1", "kind": "driver", "state": "online", "capacity": 100,
             "inFlight": 7, "clockOffsetMs": -1250.4, **said},
            {"service": "mqtt", "instance": "ears-1", "kind": "ack-listener", "state": "offline", "capacity": 0,
             "inFlight": 0, "clockOffsetMs": None, **said},
            {"service": "old", "instance": "old-1", "kind": "driver", "state": "online", "capacity": 1, "inFlight": 0,
             "clockOffsetMs": 0.2, **said},
        ],
    }  # fmt: skip
    ended = laneway("driver", "list", COLUMNS=columns)
    assert ended.code == 0
    lines = ended.out.splitlines()
    assert " ".join(lines[0:2]).split()[:4] == ["service", "kind", "instance", "state"]
    assert "seen" in " ".join(lines[0:2])
    rows = [line.split() for line in lines if not line.startswith(("service", "    "))]
    assert rows[0][:5] == ["mqtt", "ack-listener", "ears-1", "offline", "0.1.0"]
    assert rows[1][:7] == ["mqtt", "driver", "mqtt-1", "online", "0.1.0", "7/100", "-1250ms"]
    assert rows[2][:5] == ["old", "driver", "old-1", "online", "unregistered"]
    assert rows[3] == ["plc", "driver", "none", "disabled"]
    assert max(map(len, ended.out.splitlines())) <= 80 or not columns
