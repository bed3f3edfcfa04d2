"""What is shown of reviews: all that was said about a command, sorted."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Literal

from pydantic import Field
from sqlalchemy import RowMapping

from laneway_center.api.bodies import Body, CommandView, EventView, Reason, command_view, event_view
from laneway_center.store.reviews import Review
from laneway_shared.lifecycle import ResultKind, Status


class ResolveBody(Body):
    """What a person found out."""

    outcome: Literal["SUCCESS", "FAILED"]
    reason: Reason


class ReviewView(Body):
    """A command of which nobody knows whether it acted."""

    command_id: str
    device_id: int
    point_id: int
    type: str
    value: str | None
    driver: str
    lane_key: str
    attempt: int
    since: datetime
    why: str
    error_code: str | None
    error_message: str | None
    intent_key: str | None
    holds_lane: bool
    waiting_behind: int = Field(description="Commands waiting in its lane.")


class ReviewList(Body):
    """A page of open reviews, oldest first. `nextCursor` fetches the next one."""

    reviews: list[ReviewView]
    next_cursor: str | None


class DecisionView(Body):
    """How a review ended: by an operator, or (`operator` null) by late evidence."""

    operator: str | None
    outcome: Status
    at: datetime
    why: str | None


class AttemptView(Body):
    """One attempt of a command. `outcome` is the line of the timeline that ended it."""

    attempt: int
    claimed_at: datetime | None = None
    start_by: str | None = None
    confirmed_at: datetime | None = None
    started_at: datetime | None = None
    outcome: str | None = None


class AnswerView(Body):
    """What a driver, a listener or the device said; `count` times the same."""

    attempt: int
    kind: str
    source: str | None
    response_value: str | None
    error_code: str | None
    error_message: str | None
    count: int
    first: datetime
    last: datetime


class ReviewDetail(Body):
    """A review with all evidence: before it, and since."""

    open: bool
    review: ReviewView
    command: CommandView
    decision: DecisionView | None
    attempts: list[AttemptView]
    answers: list[AnswerView]
    late_answers: list[AnswerView]
    events: list[EventView]


# ---------------------------------------------------------------------------------------- from rows
_SAME = (
    "device_id", "point_id", "type", "driver", "lane_key", "attempt", "error_code", "error_message", "intent_key",
)  # fmt: skip


def review_view(command: RowMapping, *, since: datetime, why: str, waiting_behind: int) -> ReviewView:
    """A command, and the line that put it into review."""
    return ReviewView(
        command_id=str(command["command_id"]),
        value=command["request_value"],
        holds_lane=command["review_hold"],
        since=since,
        why=why,
        waiting_behind=waiting_behind,
        **{name: command[name] for name in _SAME},
    )


def review_detail(review: Review, began: RowMapping) -> ReviewDetail:
    """A review with its evidence sorted: what was said before it `began`, and since."""
    answers: list[RowMapping] = []
    late: list[RowMapping] = []
    newest = 0
    for event in review.events:
        newest = max(newest, event["attempt"])  # claims come first
        if event["kind"] in _SAID:
            (late if event["id"] > began["id"] or event["attempt"] < newest else answers).append(event)
    command, decided = review.command, review.decision
    is_open = command["status"] == Status.MANUAL_REVIEW
    behind = review.waiting_behind
    return ReviewDetail(
        open=is_open,
        review=review_view(command, since=began["at"], why=began["note"], waiting_behind=behind),
        command=command_view(command),
        decision=None if is_open or decided is None else _decision(decided),
        attempts=_attempts(review.events),
        answers=_grouped(answers),
        late_answers=_grouped(late),
        events=[event_view(event) for event in review.events],
    )


def _decision(row: RowMapping) -> DecisionView:
    detail = row["detail"] or {}
    by = detail.get("by")
    why = detail.get("why") if by else row["note"]
    return DecisionView(operator=by, outcome=Status(row["to_status"]), at=row["at"], why=why)


_SAID = frozenset(str(kind) for kind in ResultKind) - {str(ResultKind.DUE), str(ResultKind.LETTER)}
_WORDS = ("responseValue", "errorCode", "errorMessage")


def _grouped(events: Iterable[RowMapping]) -> list[AnswerView]:
    """The same said again is one answer, counted."""
    groups: dict[tuple[Any, ...], list[RowMapping]] = {}
    for event in events:
        detail = event["detail"] or {}
        said = tuple(None if detail.get(name) is None else str(detail[name]) for name in _WORDS)
        groups.setdefault((event["attempt"], event["kind"], detail.get("instance"), *said), []).append(event)
    return [
        AnswerView(
            attempt=key[0],
            kind=key[1],
            source=key[2],
            response_value=key[3],
            error_code=key[4],
            error_message=key[5],
            count=len(same),
            first=same[0]["at"],
            last=same[-1]["at"],
        )
        for key, same in groups.items()
    ]


def _attempts(events: Sequence[RowMapping]) -> list[AttemptView]:
    found: dict[int, dict[str, Any]] = {}
    for event in events:
        if event["attempt"] == 0:
            continue
        facts = found.setdefault(event["attempt"], {"attempt": event["attempt"]})
        if event["kind"] == "CLAIMED":
            facts |= {"claimed_at": event["at"], "start_by": (event["detail"] or {}).get("startBy")}
        elif event["kind"] == "CONFIRMED":
            facts["confirmed_at"] = event["at"]
        elif event["kind"] == ResultKind.STARTED:
            facts.setdefault("started_at", event["at"])
        if event["from_status"] != event["to_status"] and event["kind"] not in _ON_ITS_WAY:
            facts["outcome"] = f"{event['to_status']}: {event['note']}"
    return [AttemptView(**facts) for _, facts in sorted(found.items())]


_ON_ITS_WAY = ("CLAIMED", "CONFIRMED", "REPLAYED", "REQUEUED", "RESOLVED")
