"""What the center counts and measures, for Prometheus. No label has unbounded values."""

from collections.abc import Iterable
from typing import Any

from prometheus_client import Counter, Gauge, Histogram

SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 300)
COUNTS = (1, 2, 3, 4, 5, 10, 20, 50, 100)

# enqueue and dequeue
ACCEPTED = Counter("laneway_commands_accepted_total", "Commands stored.")
REFUSED = Counter("laneway_commands_refused_total", "Commands refused before anything was stored.", ["code"])
CLAIMED = Counter("laneway_attempts_claimed_total", "Attempts claimed by this process.", ["driver"])
PUBLISHED = Counter("laneway_attempts_published_total", "Attempts published, by what the broker said.", ["outcome"])
LATE_CLAIMS = Counter("laneway_claims_expired_total", "Claims not published because their start window was over.")

# what came back
EVIDENCE = Counter("laneway_evidence_total", "Evidence applied, by kind.", ["kind"])
TRANSITIONS = Counter("laneway_transitions_total", "State changes by evidence, by state reached.", ["status"])
OUTCOMES = Counter("laneway_outcomes_total", "Commands ended or put in review.", ["status", "code"])
ATTEMPTS = Histogram("laneway_attempts", "Attempts a command took to its end.", ["status"], buckets=COUNTS)
LETTERS = Counter("laneway_dead_letters_total", "Dead letters and unreadable messages stored.", ["reason"])
ASKED = Counter("laneway_absence_checks_total", "Absence checks published.")
ARCHIVED = Counter("laneway_commands_archived_total", "Final commands moved to the history by this process.")
PARTITIONS_DROPPED = Counter("laneway_history_partitions_dropped_total", "Partitions dropped after the retention.")
INSTANCES_LOST = Counter("laneway_instances_lost_total", "Instances that went silent.")

# how long it took
TIME_IN_QUEUE = Histogram("laneway_time_in_queue_seconds", "Stored to claimed, first attempts.", buckets=SECONDS)
DISPATCH_LATENCY = Histogram("laneway_dispatch_latency_seconds", "Claimed to confirmed by the broker.", buckets=SECONDS)
END_TO_END = Histogram("laneway_end_to_end_latency_seconds", "Stored to final state.", ["status"], buckets=SECONDS)
LANE_BUSY = Histogram("laneway_lane_busy_seconds", "Claimed to the lane being free again.", buckets=SECONDS)

# the state of the whole, sampled by the schedule role
QUEUE_DEPTH = Gauge("laneway_queue_depth", "Commands waiting.", ["driver"])
GLOBAL_DEPTH = Gauge("laneway_global_depth", "Commands waiting, all drivers.")
LANES = Gauge("laneway_lanes", "Lanes that are not idle.", ["driver", "state"])
CLOSED = Gauge("laneway_lanes_closed", "Lanes with waiting commands, closed by an operator or a review.", ["driver"])
BLOCKED = Gauge("laneway_head_of_line_blocked_seconds", "How long the longest ready, open lane waits.", ["driver"])
IN_FLIGHT = Gauge("laneway_in_flight", "Commands between claim and hand-over.", ["driver"])
OLDEST_IN_FLIGHT = Gauge("laneway_oldest_in_flight_seconds", "Since when the oldest of them is.", ["driver"])
OLDEST_FINAL = Gauge("laneway_oldest_hot_final_seconds", "Since when the oldest final command not yet archived is.")
REVIEWS = Gauge("laneway_reviews_open", "Commands a person has to decide.")
DEAD_ENDS = Gauge("laneway_dead_letters_open", "Dead letters nobody has replayed or discarded.")
INSTANCES = Gauge("laneway_instances_online", "Live instances.", ["service", "kind"])
CLOCK_OFFSET = Gauge(
    "laneway_driver_clock_offset_seconds", "Largest difference of a live instance's clock.", ["service", "kind"]
)

# the broker, as this process sees it
BROKER_UP = Gauge("laneway_broker_connected", "1 while this process can publish.")
BLOCKED_BROKER = Gauge("laneway_publisher_blocked", "1 while RabbitMQ holds publishes back (memory or disk alarm).")

CODES = frozenset(
    {
        "ADAPTER_ERROR",
        "BROKER_AWAY",
        "CALL_TIMEOUT",
        "CLOCK_UNSETTLED",
        "COMMAND_NOT_RENDERABLE",
        "DEADLINE",
        "DELIVERY_LIMIT",
        "DEVICE_BUSY",
        "DEVICE_INVALID",
        "DEVICE_REFUSED",
        "DRIVER_ERROR",
        "INTERRUPTED",
        "MQTT_AWAY",
        "MQTT_BUSY",
        "MQTT_CONNECTION_LOST",
        "MQTT_PUBLISH_FAILED",
        "MQTT_TIMEOUT",
        "NO_ANSWER",
        "NO_QUEUE",
        "PROFILE_UNKNOWN",
        "START_WINDOW",
        "STARTED_UNCONFIRMED",
        "UNREADABLE",
        "VALIDATION",
    }
)
REASONS = frozenset(
    {
        "expired",
        "rejected",
        "delivery_limit",
        "maxlen",
        "unreadable",
        "unknown_command",
        "refused_value",
        "refused_transition",
    }
)


def code_label(code: str | None) -> str:
    """An error code as a label: devices may send any text, labels may not."""
    return "" if code is None else code if code in CODES else "OTHER"


def reason_label(reason: str) -> str:
    """A letter's reason as a label: headers may hold any text, labels may not."""
    return reason if reason in REASONS else "other"


def show(gauge: Gauge, readings: Iterable[tuple[tuple[str, ...], Any]]) -> None:
    """Set a gauge by labels, and forget those that are not among the readings."""
    gauge.clear()
    for labels, value in readings:
        gauge.labels(*labels).set(value or 0)
