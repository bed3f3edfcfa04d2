"""What each role leaves behind of what it did: a log line and a count per state change and per letter."""

from collections.abc import Sequence

import structlog

from laneway_center import metrics
from laneway_center.store.letters import Letter
from laneway_center.store.locked_rows import Change
from laneway_shared.lifecycle import FINAL

log = structlog.get_logger(__name__)


def note_changes(changes: Sequence[Change]) -> None:
    """One log line and the counters for each state change."""
    for change in changes:
        metrics.TRANSITIONS.labels(str(change.after)).inc()
        log.info("state", commandId=change.command_id, tenantId=change.tenant_id, attempt=change.attempt,
                 was=change.before, now=change.after, errorCode=change.error_code)  # fmt: skip
        if change.after in FINAL:
            metrics.END_TO_END.labels(str(change.after)).observe((change.at - change.accepted_at).total_seconds())


def note_letters(letters: Sequence[Letter]) -> None:
    """One log line and the counters for each letter set aside."""
    for letter in letters:
        metrics.LETTERS.labels(letter.reason).inc()
        log.warning("dead", queue=letter.queue, reason=letter.reason, commandId=letter.command_id,
                    attempt=letter.attempt, explanation=letter.explanation)  # fmt: skip
