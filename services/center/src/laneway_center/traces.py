"""What each role leaves behind of what it did: a log line and a count per state change and per letter."""

from collections.abc import Sequence

import structlog

from laneway_center import metrics
from laneway_center.store.letters import Letter
from laneway_center.store.locked_rows import Change
from laneway_shared.lifecycle import FINAL, ResultKind, Status
from laneway_shared.messages import ResultMessage

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
    for change in changes:
        status, code = str(change.after), metrics.code_label(change.error_code)
        metrics.TRANSITIONS.labels(status).inc()
        log.info(
            WORDS.get(change.after, "drop"),
            tenantId=change.tenant_id,
            laneKey=change.lane_key,
            commandId=change.command_id,
            attempt=change.attempt,
            intentKey=change.intent_key,
            before=change.before,
            status=status,
            errorCode=change.error_code,
        )
        if change.after in FINAL or change.after is Status.MANUAL_REVIEW:
            metrics.OUTCOMES.labels(status, code).inc()
        if change.after in FINAL:
            metrics.END_TO_END.labels(status).observe((change.at - change.accepted_at).total_seconds())
            metrics.ATTEMPTS.labels(status).observe(change.attempt)
        if change.freed_after is not None:
            metrics.LANE_BUSY.observe(change.freed_after.total_seconds())


def note_evidence(result: ResultMessage) -> None:
    """Count it; a STARTED, which changes no state, has its log line here."""
    metrics.EVIDENCE.labels(str(result.status)).inc()
    if result.status is ResultKind.STARTED:
        log.info(
            "start",
            tenantId=result.tenant_id,
            commandId=result.command_id,
            attempt=result.attempt,
            instance=result.instance,
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
