"""A command as callers see it is what the OpenAPI document says, though it is built past the model."""

from datetime import UTC, datetime
from typing import Any, get_args

import orjson

from laneway_center.api.bodies import CommandView, command_json, json_answer

AT = datetime(2026, 11, 30, 12, 0, 0, 5, tzinfo=UTC)


def row(**fields: Any) -> dict[str, Any]:
    """A row of point_command with a value of the right kind in every column."""
    values: dict[Any, Any] = {int: 7, str: "x", bool: True, datetime: AT}
    known = {"status": "AWAITING_ACK", "request_value": "1", "create_time": AT, "next_visible_at": None}
    known["ack_due_at"] = AT
    for name, field in CommandView.model_fields.items():
        kind = next((each for each in get_args(field.annotation) if each is not type(None)), field.annotation)
        known.setdefault(name, values.get(kind, "x"))
    return known | fields


def test_it_says_what_the_model_says_in_its_order() -> None:
    for status in ("AWAITING_ACK", "SUCCESS"):
        said = bytes(json_answer(command_json(row(status=status))).body)
        assert orjson.loads(CommandView.model_validate_json(said).model_dump_json(by_alias=True)) == orjson.loads(said)
        given = orjson.loads(said)
        assert set(given) == {field.alias for field in CommandView.model_fields.values()}
        assert (given["final"], given["answerDueAt"]) == (
            (True, None) if status == "SUCCESS" else (False, "2026-11-30T12:00:00.000005Z")
        )
