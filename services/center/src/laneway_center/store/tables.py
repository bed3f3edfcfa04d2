"""The tables, as SQLAlchemy metadata. Migrations build them; a test compares the two.

Column names follow the requirement's DDL (002 §4.3); durations are milliseconds. Storage parameters of the hot
tables (fillfactor, eager autovacuum) are set in the migration: SQLAlchemy has no words for them.
"""

from typing import Any

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from laneway_shared.lifecycle import DEAD_ENDS, FINAL, Status

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

INSTANT = DateTime(timezone=True)
NOW = text("clock_timestamp()")
LANE_BY = ("device", "group", "topic", "global")
"""What decides in which lane a device is, where its registration names none."""


def _one_of(column: str, *values: str) -> CheckConstraint:
    listed = ", ".join(f"'{value}'" for value in values)
    return CheckConstraint(f"{column} IN ({listed})", name=f"{column}_known")


def _policy() -> list[Column[Any] | CheckConstraint]:
    """What a driver, a device and a lane may say about a lane; NULL: the next level decides (policies.py)."""
    return [
        Column("gate", Text),
        Column("retry", Text),
        Column("review_policy", Text),
        Column("max_attempts", Integer),
        Column("ack_timeout_ms", Integer),
        Column("depth_limit", Integer),  # of one lane
        Column("on_full", Text),
        _one_of("gate", "ack", "transport"),
        _one_of("retry", "strict", "relaxed"),
        _one_of("review_policy", "release", "hold"),
        _one_of("on_full", "reject", "drop_oldest"),
        CheckConstraint("depth_limit > 0", name="depth_limit_positive"),
    ]


_FINAL = ", ".join(f"'{status}'" for status in sorted(FINAL))
HOLDS_LANE = (
    "status IN ('DISPATCHING', 'SENT') OR (status = 'AWAITING_ACK' AND gate = 'ack')"
    " OR (status = 'RETRY_WAIT' AND retry = 'strict')"
)
"""The same rule as lifecycle.holds_lane, for the in-flight index; a test compares them."""

driver = Table(
    "driver",
    metadata,
    Column("name", Text, primary_key=True),
    Column("title", Text, nullable=False, server_default=""),
    Column("enabled", Boolean, nullable=False, server_default=text("true")),
    Column("lane_by", Text, nullable=False, server_default="device"),  # how its devices share lanes
    Column("waiting_limit", Integer),  # commands waiting for it in all lanes together
    Column("create_time", INSTANT, nullable=False, server_default=NOW),
    Column("update_time", INSTANT, nullable=False, server_default=NOW),
    *_policy(),
    _one_of("lane_by", *LANE_BY),
    CheckConstraint("waiting_limit > 0", name="waiting_limit_positive"),
)

driver_instance = Table(
    "driver_instance",
    metadata,
    Column("service", Text, primary_key=True),
    Column("instance", Text, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("version", Text, nullable=False, server_default=""),
    Column("state", Text, nullable=False),
    Column("capacity", Integer, nullable=False, server_default=text("0")),
    Column("in_flight", Integer, nullable=False, server_default=text("0")),
    Column("clock_offset_ms", Double),
    Column("profiles", ARRAY(Text), nullable=False, server_default=text("'{}'::text[]")),
    Column("first_seen", INSTANT, nullable=False, server_default=NOW),
    Column("last_seen", INSTANT, nullable=False, server_default=NOW),
    _one_of("kind", "driver", "ack-listener"),
    _one_of("state", "online", "stopping", "offline"),
)

heartbeat_watch = Table(
    "heartbeat_watch",
    metadata,
    Column("id", SmallInteger, primary_key=True, autoincrement=False),
    Column("listening_since", INSTANT, nullable=False),
    Column("listening_at", INSTANT, nullable=False),
    CheckConstraint("id = 1", name="single_row"),
)

device = Table(
    "device",
    metadata,
    Column("tenant_id", BigInteger, primary_key=True, autoincrement=False),
    Column("device_id", BigInteger, primary_key=True, autoincrement=False),
    Column("name", Text, nullable=False, server_default=""),
    Column("device_sn", Text, nullable=False),
    Column("driver", Text, ForeignKey("driver.name"), nullable=False),
    Column("profile", Text),
    Column("enabled", Boolean, nullable=False, server_default=text("true")),
    Column("address", JSONB, nullable=False, server_default=text("'{}'::jsonb")),
    Column("lane_key", Text, nullable=False),  # the lane it is in
    Column("own_lane_key", Text),  # the lane its registration names; NULL: made by lane_by
    Column("lane_by", Text),  # NULL: its driver's
    Column("lane_group", Text),
    Column("create_time", INSTANT, nullable=False, server_default=NOW),
    Column("update_time", INSTANT, nullable=False, server_default=NOW),
    *_policy(),
    UniqueConstraint("device_sn", "driver"),  # topics carry no tenant
    _one_of("lane_by", *LANE_BY),
    Index("ix_device_lane", "lane_key", "tenant_id"),  # in this order: else it is taken for the key
)

point = Table(
    "point",
    metadata,
    Column("tenant_id", BigInteger, primary_key=True, autoincrement=False),
    Column("device_id", BigInteger, primary_key=True, autoincrement=False),
    Column("point_id", BigInteger, primary_key=True, autoincrement=False),
    Column("name", Text, nullable=False),
    Column("enabled", Boolean, nullable=False, server_default=text("true")),
    Column("access", Text, nullable=False),
    Column("value_type", Text, nullable=False, server_default="string"),
    Column("min", Double),
    Column("max", Double),
    Column("step", Double),
    Column("enum", ARRAY(Text)),
    Column("retry_safety", Text, nullable=False, server_default="safe"),
    Column("gate", Text),
    Column("ack", Text, nullable=False, server_default="device"),
    Column("ack_timeout_ms", Integer),
    Column("call_timeout_ms", Integer),
    Column("max_attempts", Integer),
    Column("purpose", Text),
    Column("create_time", INSTANT, nullable=False, server_default=NOW),
    Column("update_time", INSTANT, nullable=False, server_default=NOW),
    ForeignKeyConstraint(["tenant_id", "device_id"], ["device.tenant_id", "device.device_id"]),
    _one_of("access", "R", "W", "RW"),
    _one_of("value_type", "string", "int", "float", "bool", "json"),
    _one_of("retry_safety", "safe", "unsafe"),
    _one_of("gate", "ack", "transport"),
    _one_of("ack", "device", "none"),
    _one_of("purpose", "grant", "revoke"),
)

lane = Table(
    "lane",
    metadata,
    Column("lane_id", BigInteger, Identity(always=True), primary_key=True),
    Column("tenant_id", BigInteger, nullable=False),
    Column("lane_key", Text, nullable=False),
    Column("driver", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("ready_at", INSTANT, nullable=False),
    Column("next_seq", BigInteger, nullable=False, server_default=text("0")),
    Column("depth", Integer, nullable=False, server_default=text("0")),  # PENDING and RETRY_WAIT
    Column("placement", Integer, nullable=False, server_default=text("0")),  # counts devices that left it
    Column("last_priority", SmallInteger, nullable=False, server_default=text("0")),  # no waiting one is beyond it
    Column("token", BigInteger, nullable=False, server_default=text("0")),
    Column("holder_id", BigInteger),  # the command that holds the lane, also through a strict RETRY_WAIT
    Column("operator_hold", Text),  # who put it
    Column("operator_hold_reason", Text),
    Column("operator_hold_at", INSTANT),
    Column("review_holds", Integer, nullable=False, server_default=text("0")),
    UniqueConstraint("tenant_id", "lane_key"),
    *_policy(),
    _one_of("state", "idle", "ready", "busy"),
    CheckConstraint("depth >= 0", name="depth_not_negative"),
    CheckConstraint("review_holds >= 0", name="review_holds_not_negative"),
    Index(
        "ix_lane_ready",
        "driver",
        "ready_at",
        postgresql_where=text("state = 'ready' AND operator_hold IS NULL AND review_holds = 0"),
    ),
)

point_command = Table(
    "point_command",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("command_id", Uuid, nullable=False),
    Column("tenant_id", BigInteger, nullable=False),
    Column("type", Text, nullable=False),
    Column("device_id", BigInteger, nullable=False),
    Column("point_id", BigInteger, nullable=False),
    Column("lane_id", BigInteger, ForeignKey("lane.lane_id"), nullable=False),
    Column("driver", Text, nullable=False),
    Column("priority", SmallInteger, nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("request_value", Text),
    Column("response_value", Text),
    Column("status", Text, nullable=False),
    Column("error_code", Text),
    Column("error_message", Text),
    Column("source", Text, nullable=False),
    Column("source_user_id", BigInteger),
    Column("intent_key", Text),
    Column("purpose", Text),
    Column("body_hash", LargeBinary, nullable=False),
    Column("retry_safety", Text, nullable=False),
    Column("gate", Text, nullable=False),
    Column("retry", Text, nullable=False),
    Column("review_policy", Text, nullable=False, server_default="release"),
    Column("ack_expected", Boolean, nullable=False),
    Column("ack_timeout_ms", Integer),
    Column("call_timeout_ms", Integer, nullable=False),
    Column("attempt", Integer, nullable=False, server_default=text("0")),
    Column("attempts_spent", Integer, nullable=False, server_default=text("0")),
    Column("max_attempts", Integer, nullable=False),
    Column("lane_token", BigInteger),
    Column("claimed_by", Text),
    Column("claimed_at", INSTANT),
    Column("start_by", INSTANT),
    Column("quiet_at", INSTANT),
    Column("started", Boolean, nullable=False, server_default=text("false")),
    Column("unknown", Boolean, nullable=False, server_default=text("false")),
    Column("letter", Text),
    Column("called", Boolean, nullable=False, server_default=text("false")),
    Column("may_have_run", Boolean, nullable=False, server_default=text("false")),
    Column("absent", Boolean, nullable=False, server_default=text("false")),
    Column("review_hold", Boolean, nullable=False, server_default=text("false")),  # its review holds the lane
    Column("next_visible_at", INSTANT),
    Column("ack_due_at", INSTANT),
    Column("due_at", INSTANT),  # when the scheduler asks after it
    Column("occurred_at", INSTANT, nullable=False),
    Column("sent_at", INSTANT),
    Column("started_at", INSTANT),
    Column("finished_at", INSTANT),
    Column("expire_at", INSTANT, nullable=False),
    Column("schema_version", SmallInteger, nullable=False, server_default=text("1")),
    Column("create_time", INSTANT, nullable=False, server_default=NOW),
    Column("update_time", INSTANT, nullable=False, server_default=NOW),
    UniqueConstraint("command_id", "tenant_id"),  # in this order: devices answer without a tenant
    _one_of("status", *(str(status) for status in Status)),
    _one_of("type", "READ", "WRITE"),
    _one_of("retry_safety", "safe", "unsafe"),
    _one_of("gate", "ack", "transport"),
    _one_of("retry", "strict", "relaxed"),
    _one_of("review_policy", "release", "hold"),
    _one_of("purpose", "grant", "revoke"),
    CheckConstraint(f"(finished_at IS NOT NULL) = (status IN ({_FINAL}))", name="finished_when_final"),
    CheckConstraint(
        "status NOT IN ('DISPATCHING', 'SENT') OR (attempt > 0 AND start_by IS NOT NULL AND quiet_at IS NOT NULL)",
        name="attempt_in_flight",
    ),
    CheckConstraint("(next_visible_at IS NOT NULL) = (status = 'RETRY_WAIT')", name="visible_when_retried"),
    CheckConstraint("status <> 'AWAITING_ACK' OR ack_due_at IS NOT NULL", name="ack_due_when_awaited"),
    Index("uq_point_command_in_flight", "lane_id", unique=True, postgresql_where=text(HOLDS_LANE)),
    Index(
        "ix_point_command_head",
        "lane_id",
        "priority",
        "seq",
        postgresql_where=text("status IN ('PENDING', 'RETRY_WAIT')"),
    ),
    Index(
        "ix_point_command_intent",
        "lane_id",
        "device_id",
        "intent_key",
        postgresql_where=text("intent_key IS NOT NULL AND finished_at IS NULL"),
    ),
    Index(
        "ix_point_command_intent_done",  # was it overtaken? The other half of the one above
        "lane_id",
        "device_id",
        "intent_key",
        "id",
        postgresql_where=text("intent_key IS NOT NULL AND finished_at IS NOT NULL"),
    ),
    Index("ix_point_command_due", "due_at", postgresql_where=text("due_at IS NOT NULL")),
    Index("ix_point_command_at_driver", "driver", postgresql_where=text("status IN ('DISPATCHING', 'SENT')")),
    Index("ix_point_command_review", "lane_id", postgresql_where=text("status = 'MANUAL_REVIEW'")),
    Index("ix_point_command_finished", "finished_at", postgresql_where=text("finished_at IS NOT NULL")),  # to archive
    Index("ix_point_command_reviews", "tenant_id", "id", postgresql_where=text("status = 'MANUAL_REVIEW'")),
    Index("ix_point_command_lookup", "tenant_id", "device_id", "point_id", text("occurred_at DESC")),
)

point_command_event = Table(
    "point_command_event",
    metadata,
    Column("id", BigInteger, Identity(always=True), nullable=False),
    Column("command_pk", BigInteger, nullable=False),  # no foreign key: its check costs more than the row
    Column("at", INSTANT, nullable=False),
    Column("from_status", Text),
    Column("to_status", Text),  # the same as from_status: evidence that moved nothing
    Column("attempt", Integer, nullable=False),
    Column("kind", Text, nullable=False),
    Column("note", Text, nullable=False),
    Column("detail", JSONB),
    PrimaryKeyConstraint("command_pk", "id"),  # the one index it needs
)


def _columns_of(table: Table) -> list[Column[Any]]:
    """The same names and types, without defaults, checks and references: history takes rows as they are."""
    return [
        Column(column.name, column.type, nullable=column.nullable and column.name != "finished_at", autoincrement=False)
        for column in table.columns
    ]


# Final commands after the hot window, and their timelines; a partition per day (UTC) on which commands ended.
# Whatever column point_command or point_command_event gets, these two get in the same migration; a test compares.
point_command_history = Table(
    "point_command_history",
    metadata,
    *_columns_of(point_command),
    PrimaryKeyConstraint("id", "finished_at"),
    Index("ix_point_command_history_command", "command_id", "tenant_id"),
    Index("ix_point_command_history_device", "tenant_id", "device_id", "id"),
    postgresql_partition_by="RANGE (finished_at)",
)

point_command_event_history = Table(
    "point_command_event_history",
    metadata,
    *_columns_of(point_command_event),
    Column("finished_at", INSTANT, nullable=False),  # the command's: both go on the same day
    PrimaryKeyConstraint("id", "finished_at"),
    Index("ix_point_command_event_history_command", "command_pk", "id"),
    postgresql_partition_by="RANGE (finished_at)",
)

dead_letter = Table(
    "dead_letter",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("letter_hash", LargeBinary, nullable=False),  # the same letter delivered twice is stored once
    Column("received_at", INSTANT, nullable=False, server_default=NOW),
    Column("tenant_id", BigInteger),
    Column("command_id", Uuid),
    Column("attempt", Integer),
    Column("queue", Text, nullable=False),
    Column("routing_key", Text, nullable=False, server_default=""),
    Column("reason", Text, nullable=False),
    Column("explanation", Text),
    Column("body", LargeBinary, nullable=False),
    Column("headers", JSONB, nullable=False, server_default=text("'{}'::jsonb")),
    UniqueConstraint("letter_hash"),
    Index("ix_dead_letter_command", "tenant_id", "command_id"),
    Index("ix_dead_letter_received", "received_at"),
)

dead_end = Table(
    "dead_end",  # what operators see as a dead letter: one end of a command, or a message that belongs to none
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("at", INSTANT, nullable=False),
    Column("tenant_id", BigInteger, nullable=False),
    Column("command_pk", BigInteger),  # NULL: a message; no foreign key, the command may be archived
    Column("command_id", Uuid),
    Column("letter_id", BigInteger),  # the message
    Column("ended_as", Text),
    Column("attempt", Integer),
    Column("reason", Text, nullable=False),
    Column("error_code", Text),
    Column("explanation", Text),
    Column("driver", Text),
    Column("device_id", BigInteger),
    Column("state", Text, nullable=False, server_default="open"),
    Column("handled_at", INSTANT),
    Column("handled_by", Text),
    Column("handled_why", Text),
    _one_of("state", "open", "replayed", "discarded"),
    _one_of("ended_as", *sorted(DEAD_ENDS)),
    CheckConstraint("(state = 'open') = (handled_at IS NULL)", name="handled_once"),
    CheckConstraint("(command_pk IS NULL) = (ended_as IS NULL)", name="an_end_of_a_command"),
    CheckConstraint("(command_pk IS NULL) = (letter_id IS NOT NULL)", name="command_or_message"),
    Index(
        "uq_dead_end_open",
        "command_pk",
        unique=True,
        postgresql_where=text("state = 'open' AND command_pk IS NOT NULL"),
    ),
    Index("ix_dead_end_state", "tenant_id", "state", "at", "id"),
    Index("ix_dead_end_device", "tenant_id", "device_id", "at"),
    Index("ix_dead_end_command", "tenant_id", "command_id"),
    Index("ix_dead_end_at", "at"),
)

operator_action = Table(
    "operator_action",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("at", INSTANT, nullable=False, server_default=NOW),
    Column("operator", Text, nullable=False),
    Column("action", Text, nullable=False),  # lane.hold, letter.replay, review.resolve …
    Column("tenant_id", BigInteger),  # NULL: of no tenant
    Column("subject", Text, nullable=False),  # lane key, command id, letter id
    Column("why", Text, nullable=False),
    Column("before", JSONB),
    Column("after", JSONB),
    Index("ix_operator_action_at", "at"),
    Index("ix_operator_action_subject", "tenant_id", "subject"),
    Index("ix_operator_action_operator", "operator", "id"),
)
