"""The tables of the first journey.

Revision: 0001, after None.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "0001"
down_revision: str | None = None
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "dead_letter",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("letter_hash", sa.LargeBinary(), nullable=False),
        sa.Column(
            "received_at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.Column("tenant_id", sa.BigInteger(), nullable=True),
        sa.Column("command_id", sa.Uuid(), nullable=True),
        sa.Column("attempt", sa.Integer(), nullable=True),
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("routing_key", sa.Text(), server_default="", nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("explanation", sa.Text(), nullable=True),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column(
            "headers", postgresql.JSONB(astext_type=sa.Text()), server_default=sa.text("'{}'::jsonb"), nullable=False
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_dead_letter")),
        sa.UniqueConstraint("letter_hash", name=op.f("uq_dead_letter_letter_hash")),
    )
    op.create_index("ix_dead_letter_command", "dead_letter", ["tenant_id", "command_id"], unique=False)
    op.create_index("ix_dead_letter_received", "dead_letter", ["received_at"], unique=False)
    op.create_table(
        "driver",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("title", sa.Text(), server_default="", nullable=False),
        sa.Column("enabled", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column(
            "create_time", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.Column(
            "update_time", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_driver")),
    )
    op.create_table(
        "driver_instance",
        sa.Column("service", sa.Text(), nullable=False),
        sa.Column("instance", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("version", sa.Text(), server_default="", nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("capacity", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("in_flight", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("clock_offset_ms", sa.Double(), nullable=True),
        sa.Column("profiles", sa.ARRAY(sa.Text()), server_default=sa.text("'{}'::text[]"), nullable=False),
        sa.Column(
            "first_seen", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.Column("last_seen", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False),
        sa.CheckConstraint("kind IN ('driver', 'ack-listener')", name=op.f("ck_driver_instance_kind_known")),
        sa.CheckConstraint("state IN ('online', 'stopping', 'offline')", name=op.f("ck_driver_instance_state_known")),
        sa.PrimaryKeyConstraint("service", "instance", name=op.f("pk_driver_instance")),
    )
    op.create_table(
        "heartbeat_watch",
        sa.Column("id", sa.SmallInteger(), autoincrement=False, nullable=False),
        sa.Column("listening_since", sa.DateTime(timezone=True), nullable=False),
        sa.Column("listening_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("id = 1", name=op.f("ck_heartbeat_watch_single_row")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_heartbeat_watch")),
    )
    op.create_table(
        "lane",
        sa.Column("lane_id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("tenant_id", sa.BigInteger(), nullable=False),
        sa.Column("lane_key", sa.Text(), nullable=False),
        sa.Column("driver", sa.Text(), nullable=False),
        sa.Column("review_policy", sa.Text(), server_default="release", nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("ready_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("next_seq", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("depth", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("token", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("holder_id", sa.BigInteger(), nullable=True),
        sa.Column("operator_hold", sa.Text(), nullable=True),
        sa.Column("operator_hold_reason", sa.Text(), nullable=True),
        sa.Column("review_holds", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.CheckConstraint("review_policy IN ('release', 'hold')", name=op.f("ck_lane_review_policy_known")),
        sa.CheckConstraint("state IN ('idle', 'ready', 'busy')", name=op.f("ck_lane_state_known")),
        sa.CheckConstraint("depth >= 0", name=op.f("ck_lane_depth_not_negative")),
        sa.CheckConstraint("review_holds >= 0", name=op.f("ck_lane_review_holds_not_negative")),
        sa.PrimaryKeyConstraint("lane_id", name=op.f("pk_lane")),
        sa.UniqueConstraint("tenant_id", "lane_key", name=op.f("uq_lane_tenant_id_lane_key")),
    )
    op.create_index(
        "ix_lane_ready", "lane", ["driver", "ready_at"], unique=False, postgresql_where=sa.text("state = 'ready'")
    )
    op.create_table(
        "device",
        sa.Column("tenant_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("device_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("name", sa.Text(), server_default="", nullable=False),
        sa.Column("device_sn", sa.Text(), nullable=False),
        sa.Column("driver", sa.Text(), nullable=False),
        sa.Column("profile", sa.Text(), nullable=True),
        sa.Column("enabled", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column(
            "address", postgresql.JSONB(astext_type=sa.Text()), server_default=sa.text("'{}'::jsonb"), nullable=False
        ),
        sa.Column("lane_key", sa.Text(), nullable=False),
        sa.Column("retry", sa.Text(), server_default="strict", nullable=False),
        sa.Column("review_policy", sa.Text(), server_default="release", nullable=False),
        sa.Column(
            "create_time", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.Column(
            "update_time", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.CheckConstraint("retry IN ('strict', 'relaxed')", name=op.f("ck_device_retry_known")),
        sa.CheckConstraint("review_policy IN ('release', 'hold')", name=op.f("ck_device_review_policy_known")),
        sa.ForeignKeyConstraint(["driver"], ["driver.name"], name=op.f("fk_device_driver")),
        sa.PrimaryKeyConstraint("tenant_id", "device_id", name=op.f("pk_device")),
        sa.UniqueConstraint("device_sn", "driver", name=op.f("uq_device_device_sn_driver")),
    )
    op.create_table(
        "point_command",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("command_id", sa.Uuid(), nullable=False),
        sa.Column("tenant_id", sa.BigInteger(), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("device_id", sa.BigInteger(), nullable=False),
        sa.Column("point_id", sa.BigInteger(), nullable=False),
        sa.Column("lane_id", sa.BigInteger(), nullable=False),
        sa.Column("driver", sa.Text(), nullable=False),
        sa.Column("priority", sa.SmallInteger(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("request_value", sa.Text(), nullable=True),
        sa.Column("response_value", sa.Text(), nullable=True),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("error_code", sa.Text(), nullable=True),
        sa.Column("error_message", sa.Text(), nullable=True),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("source_user_id", sa.BigInteger(), nullable=True),
        sa.Column("intent_key", sa.Text(), nullable=True),
        sa.Column("body_hash", sa.LargeBinary(), nullable=False),
        sa.Column("retry_safety", sa.Text(), nullable=False),
        sa.Column("gate", sa.Text(), nullable=False),
        sa.Column("retry", sa.Text(), nullable=False),
        sa.Column("ack_expected", sa.Boolean(), nullable=False),
        sa.Column("ack_timeout_ms", sa.Integer(), nullable=True),
        sa.Column("call_timeout_ms", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("attempts_spent", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("max_attempts", sa.Integer(), nullable=False),
        sa.Column("lane_token", sa.BigInteger(), nullable=True),
        sa.Column("claimed_by", sa.Text(), nullable=True),
        sa.Column("claimed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("start_by", sa.DateTime(timezone=True), nullable=True),
        sa.Column("quiet_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("started", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("unknown", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("letter", sa.Text(), nullable=True),
        sa.Column("called", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("may_have_run", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("absent", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("review_hold", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("next_visible_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ack_due_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("due_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("occurred_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("sent_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("expire_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("schema_version", sa.SmallInteger(), server_default=sa.text("1"), nullable=False),
        sa.Column(
            "create_time", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.Column(
            "update_time", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.CheckConstraint(
            "(finished_at IS NOT NULL) = (status IN ('CANCELLED', 'DEAD', 'EXPIRED', 'FAILED', 'SUCCESS', 'SUPERSEDED', 'TIMEOUT'))",
            name=op.f("ck_point_command_finished_when_final"),
        ),
        sa.CheckConstraint(
            "(next_visible_at IS NOT NULL) = (status = 'RETRY_WAIT')",
            name=op.f("ck_point_command_visible_when_retried"),
        ),
        sa.CheckConstraint("gate IN ('ack', 'transport')", name=op.f("ck_point_command_gate_known")),
        sa.CheckConstraint("retry IN ('strict', 'relaxed')", name=op.f("ck_point_command_retry_known")),
        sa.CheckConstraint("retry_safety IN ('safe', 'unsafe')", name=op.f("ck_point_command_retry_safety_known")),
        sa.CheckConstraint(
            "status <> 'AWAITING_ACK' OR ack_due_at IS NOT NULL", name=op.f("ck_point_command_ack_due_when_awaited")
        ),
        sa.CheckConstraint(
            "status IN ('PENDING', 'DISPATCHING', 'SENT', 'AWAITING_ACK', 'RETRY_WAIT', 'SUCCESS', 'FAILED', 'TIMEOUT', 'EXPIRED', 'DEAD', 'MANUAL_REVIEW', 'CANCELLED', 'SUPERSEDED')",
            name=op.f("ck_point_command_status_known"),
        ),
        sa.CheckConstraint(
            "status NOT IN ('DISPATCHING', 'SENT') OR (attempt > 0 AND start_by IS NOT NULL AND quiet_at IS NOT NULL)",
            name=op.f("ck_point_command_attempt_in_flight"),
        ),
        sa.CheckConstraint("type IN ('READ', 'WRITE')", name=op.f("ck_point_command_type_known")),
        sa.ForeignKeyConstraint(["lane_id"], ["lane.lane_id"], name=op.f("fk_point_command_lane_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_point_command")),
        sa.UniqueConstraint("command_id", "tenant_id", name=op.f("uq_point_command_command_id_tenant_id")),
    )
    op.create_index(
        "ix_point_command_at_driver",
        "point_command",
        ["driver"],
        unique=False,
        postgresql_where=sa.text("status IN ('DISPATCHING', 'SENT')"),
    )
    op.create_index(
        "ix_point_command_due",
        "point_command",
        ["due_at"],
        unique=False,
        postgresql_where=sa.text("due_at IS NOT NULL"),
    )
    op.create_index(
        "ix_point_command_head",
        "point_command",
        ["lane_id", "priority", "seq"],
        unique=False,
        postgresql_where=sa.text("status IN ('PENDING', 'RETRY_WAIT')"),
    )
    op.create_index(
        "ix_point_command_lookup",
        "point_command",
        ["tenant_id", "device_id", "point_id", sa.literal_column("occurred_at DESC")],
        unique=False,
    )
    op.create_index(
        "ix_point_command_review",
        "point_command",
        ["lane_id"],
        unique=False,
        postgresql_where=sa.text("status = 'MANUAL_REVIEW'"),
    )
    op.create_index(
        "uq_point_command_in_flight",
        "point_command",
        ["lane_id"],
        unique=True,
        postgresql_where=sa.text(
            "status IN ('DISPATCHING', 'SENT') OR (status = 'AWAITING_ACK' AND gate = 'ack') OR (status = 'RETRY_WAIT' AND retry = 'strict')"
        ),
    )
    op.create_table(
        "point",
        sa.Column("tenant_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("device_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("point_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("enabled", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column("access", sa.Text(), nullable=False),
        sa.Column("value_type", sa.Text(), server_default="string", nullable=False),
        sa.Column("min", sa.Double(), nullable=True),
        sa.Column("max", sa.Double(), nullable=True),
        sa.Column("step", sa.Double(), nullable=True),
        sa.Column("enum", sa.ARRAY(sa.Text()), nullable=True),
        sa.Column("retry_safety", sa.Text(), server_default="safe", nullable=False),
        sa.Column("gate", sa.Text(), nullable=True),
        sa.Column("ack", sa.Text(), server_default="device", nullable=False),
        sa.Column("ack_timeout_ms", sa.Integer(), nullable=True),
        sa.Column("call_timeout_ms", sa.Integer(), nullable=True),
        sa.Column("max_attempts", sa.Integer(), nullable=True),
        sa.Column(
            "create_time", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.Column(
            "update_time", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.CheckConstraint("access IN ('R', 'W', 'RW')", name=op.f("ck_point_access_known")),
        sa.CheckConstraint("ack IN ('device', 'none')", name=op.f("ck_point_ack_known")),
        sa.CheckConstraint("gate IN ('ack', 'transport')", name=op.f("ck_point_gate_known")),
        sa.CheckConstraint("retry_safety IN ('safe', 'unsafe')", name=op.f("ck_point_retry_safety_known")),
        sa.CheckConstraint(
            "value_type IN ('string', 'int', 'float', 'bool', 'json')", name=op.f("ck_point_value_type_known")
        ),
        sa.ForeignKeyConstraint(
            ["tenant_id", "device_id"],
            ["device.tenant_id", "device.device_id"],
            name=op.f("fk_point_tenant_id_device_id"),
        ),
        sa.PrimaryKeyConstraint("tenant_id", "device_id", "point_id", name=op.f("pk_point")),
    )
    op.create_table(
        "point_command_event",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("command_pk", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("from_status", sa.Text(), nullable=True),
        sa.Column("to_status", sa.Text(), nullable=True),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("detail", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.ForeignKeyConstraint(["command_pk"], ["point_command.id"], name=op.f("fk_point_command_event_command_pk")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_point_command_event")),
    )
    op.create_index("ix_point_command_event_command", "point_command_event", ["command_pk", "id"], unique=False)

    for table in ("lane", "point_command"):
        # rows here are updated several times each: leave room on the page, and vacuum early
        op.execute(
            f"ALTER TABLE {table} SET (fillfactor = 75, autovacuum_vacuum_scale_factor = 0.02,"
            " autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0.02)"
        )


def downgrade() -> None:
    """Take back."""
    op.drop_index("ix_point_command_event_command", table_name="point_command_event")
    op.drop_table("point_command_event")
    op.drop_table("point")
    op.drop_index(
        "uq_point_command_in_flight",
        table_name="point_command",
        postgresql_where=sa.text(
            "status IN ('DISPATCHING', 'SENT') OR (status = 'AWAITING_ACK' AND gate = 'ack') OR (status = 'RETRY_WAIT' AND retry = 'strict')"
        ),
    )
    op.drop_index("ix_point_command_review", table_name="point_command")
    op.drop_index("ix_point_command_lookup", table_name="point_command")
    op.drop_index(
        "ix_point_command_head",
        table_name="point_command",
        postgresql_where=sa.text("status IN ('PENDING', 'RETRY_WAIT')"),
    )
    op.drop_index("ix_point_command_due", table_name="point_command", postgresql_where=sa.text("due_at IS NOT NULL"))
    op.drop_index(
        "ix_point_command_at_driver",
        table_name="point_command",
        postgresql_where=sa.text("status IN ('DISPATCHING', 'SENT')"),
    )
    op.drop_table("point_command")
    op.drop_table("device")
    op.drop_index("ix_lane_ready", table_name="lane", postgresql_where=sa.text("state = 'ready'"))
    op.drop_table("lane")
    op.drop_table("heartbeat_watch")
    op.drop_table("driver_instance")
    op.drop_table("driver")
    op.drop_index("ix_dead_letter_received", table_name="dead_letter")
    op.drop_index("ix_dead_letter_command", table_name="dead_letter")
    op.drop_table("dead_letter")
