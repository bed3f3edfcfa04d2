"""What each role leaves behind of what it did: a log line and a count per state change and per letter."""

from collections import Counter
from collections.abc import Sequence
from functools import cache

import structlog
from prometheus_client import Histogram

from laneway_center import metrics
from laneway_center.store.letters import Letter
from laneway_center.store.locked_rows import Change
from laneway_shared.lifecycle import FINAL, ResultKind, Status
from laneway_shared.messages import ResultMessage
from laneway_shared.telemetry import log_each

log = structlog.get_logger(__name__)

WORDS = {
    Status.AWAITING_ACK: "transmitted",
    Status.SUCCESS: "ack",
    Status.RETRY_WAIT: "retry",
    Status.DEAD: "dead",
    Status.MANUAL_REVIEW: "review",
    Status.PENDING: "replay",
}
"""The word of a log line by the state reached; every other one is a `drop`: the command ended undone."""


def note_changes(changes: Sequence[Change]) -> None:
    """One log line and the counters for each state change."""
    log_each(
        [
            {
                "event": WORDS.get(change.after, "drop"),
                "tenantId": change.tenant_id,
                "laneKey": change.lane_key,
                "commandId": change.command_id,
                "attempt": change.attempt,
                "intentKey": change.intent_key,
                "before": change.before,
                "status": change.after,
                "errorCode": change.error_code,
            }
            for change in changes
        ]
    )
    for status, count in Counter(change.after for change in changes).items():
        metrics.TRANSITIONS.labels(status.value).inc(count)
    ended = [change for change in changes if change.after in FINAL]
    reached = Counter((change.after, metrics.code_label(change.error_code)) for change in changes
                      if change.after in FINAL or change.after is Status.MANUAL_REVIEW)  # fmt: skip
    for (status, code), count in reached.items():
        metrics.OUTCOMES.labels(status.value, code).inc(count)
    for change in ended:
        end_to_end, attempts = _ends(change.after)
        end_to_end.observe((change.at - change.accepted_at).total_seconds())
        attempts.observe(change.attempt)
    for change in changes:
        if change.freed_after is not None:
            metrics.LANE_BUSY.observe(change.freed_after.total_seconds())


@cache
def _ends(status: Status) -> tuple[Histogram, Histogram]:
    """Looking a label up takes longer than counting."""
    return metrics.END_TO_END.labels(status.value), metrics.ATTEMPTS.labels(status.value)


def note_evidence(results: Sequence[ResultMessage]) -> None:
    """Count it; a STARTED, which changes no state, has its log line here."""
    for kind, count in Counter(result.status for result in results).items():
        metrics.EVIDENCE.labels(kind.value).inc(count)
    log_each(
        [
            {
                "event": "start",
                "tenantId": result.tenant_id,
                "commandId": result.command_id,
                "attempt": result.attempt,
                "instance": result.instance,
            }
            for result in results
            if result.status is ResultKind.STARTED
        ]
    )


def note_letters(letters: Sequence[Letter]) -> None:
    """One log line and the counters for each letter set aside."""
    for letter in letters:
        metrics.LETTERS.labels(metrics.reason_label(letter.reason)).inc()
        log.warning(
            "letter",
            queue=letter.queue,
            reason=letter.reason,
            tenantId=letter.tenant_id,
            commandId=letter.command_id,
            attempt=letter.attempt,
            explanation=letter.explanation,
        )
