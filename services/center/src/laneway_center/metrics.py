"""What the center counts and measures, for Prometheus. No label has unbounded values."""

from prometheus_client import Counter, Gauge, Histogram

SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 300)

ACCEPTED = Counter("laneway_commands_accepted_total", "Commands stored.")
REFUSED = Counter("laneway_commands_refused_total", "Commands refused before anything was stored.", ["code"])
CLAIMED = Counter("laneway_attempts_claimed_total", "Attempts claimed by this process.", ["driver"])
PUBLISHED = Counter("laneway_attempts_published_total", "Attempts published, by what the broker said.", ["outcome"])
EVIDENCE = Counter("laneway_evidence_total", "Evidence applied, by kind.", ["kind"])
TRANSITIONS = Counter("laneway_transitions_total", "State changes by evidence, by state reached.", ["status"])
LETTERS = Counter("laneway_dead_letters_total", "Dead letters and unreadable messages stored.", ["reason"])
ASKED = Counter("laneway_absence_checks_total", "Absence checks published.")
INSTANCES_LOST = Counter("laneway_instances_lost_total", "Instances that went silent.")
DISPATCH_LATENCY = Histogram("laneway_dispatch_latency_seconds", "Stored to claimed.", buckets=SECONDS)
END_TO_END = Histogram("laneway_end_to_end_latency_seconds", "Stored to final state.", ["status"], buckets=SECONDS)
BROKER_UP = Gauge("laneway_broker_connected", "1 while this process can publish.")
