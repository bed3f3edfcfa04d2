"""Policies of lanes, devices and drivers; intents; operators' actions.

Revision: 0002, after 0001.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "0002"
down_revision: str | None = "0001"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

POLICY = {
    "gate": ("ack", "transport"),
    "retry": ("strict", "relaxed"),
    "review_policy": ("release", "hold"),
    "on_full": ("reject", "drop_oldest"),
}
HAD = {"device": ("retry", "review_policy"), "lane": ("review_policy",), "driver": ()}
LANE_BY = ("device", "group", "topic", "global")


def upgrade() -> None:
    """Apply."""
    for table, had in HAD.items():
        for name in had:
            op.alter_column(table, name, nullable=True, server_default=None)
            # what stood there by default is not a choice of this level
            standard = {"retry": "strict", "review_policy": "release"}[name]
            op.execute(f"UPDATE {table} SET {name} = NULL WHERE {name} = '{standard}'")
        for name, values in POLICY.items():
            if name not in had:
                op.add_column(table, sa.Column(name, sa.Text()))
                op.create_check_constraint(op.f(f"ck_{table}_{name}_known"), table, _one_of(name, values))
        for name in ("max_attempts", "ack_timeout_ms", "depth_limit"):
            op.add_column(table, sa.Column(name, sa.Integer()))
        op.create_check_constraint(op.f(f"ck_{table}_depth_limit_positive"), table, "depth_limit > 0")
    op.add_column("driver", sa.Column("lane_by", sa.Text(), server_default="device", nullable=False))
    op.add_column("driver", sa.Column("waiting_limit", sa.Integer()))
    op.create_check_constraint(op.f("ck_driver_lane_by_known"), "driver", _one_of("lane_by", LANE_BY))
    op.create_check_constraint(op.f("ck_driver_waiting_limit_positive"), "driver", "waiting_limit > 0")

    op.add_column("device", sa.Column("own_lane_key", sa.Text()))
    op.add_column("device", sa.Column("lane_by", sa.Text()))
    op.add_column("device", sa.Column("lane_group", sa.Text()))
    op.create_check_constraint(op.f("ck_device_lane_by_known"), "device", _one_of("lane_by", LANE_BY))
    op.execute("UPDATE device SET own_lane_key = lane_key WHERE lane_key <> 'device:' || device_id")
    op.create_index("ix_device_lane", "device", ["lane_key", "tenant_id"])

    op.add_column("point", sa.Column("purpose", sa.Text()))
    op.create_check_constraint(op.f("ck_point_purpose_known"), "point", _one_of("purpose", ("grant", "revoke")))

    op.add_column("lane", sa.Column("last_priority", sa.SmallInteger(), server_default=sa.text("0"), nullable=False))
    op.execute("UPDATE lane SET last_priority = 9")
    op.add_column("lane", sa.Column("operator_hold_at", sa.DateTime(timezone=True)))
    op.add_column("lane", sa.Column("placement", sa.Integer(), server_default=sa.text("0"), nullable=False))
    op.drop_index("ix_lane_ready", "lane")
    op.create_index(
        "ix_lane_ready",
        "lane",
        ["driver", "ready_at"],
        postgresql_where=sa.text("state = 'ready' AND operator_hold IS NULL AND review_holds = 0"),
    )

    op.add_column("point_command", sa.Column("purpose", sa.Text()))
    op.add_column("point_command", sa.Column("review_policy", sa.Text(), server_default="release", nullable=False))
    # a lane's review policy was its device's; commands now carry their own
    op.execute(
        "UPDATE point_command c SET review_policy = 'hold' FROM lane l"
        " WHERE l.lane_id = c.lane_id AND l.review_policy = 'hold' AND c.finished_at IS NULL"
    )
    op.execute("UPDATE lane SET review_policy = NULL")
    op.create_check_constraint(
        op.f("ck_point_command_review_policy_known"), "point_command", _one_of("review_policy", ("release", "hold"))
    )
    op.create_check_constraint(
        op.f("ck_point_command_purpose_known"), "point_command", _one_of("purpose", ("grant", "revoke"))
    )
    op.create_index(
        "ix_point_command_intent",
        "point_command",
        ["lane_id", "device_id", "intent_key"],
        postgresql_where=sa.text("intent_key IS NOT NULL AND finished_at IS NULL"),
    )
    # every writer of a timeline holds the command's row; the check cost more than the row it checked
    op.drop_constraint(op.f("fk_point_command_event_command_pk"), "point_command_event", type_="foreignkey")
    # one index instead of two: a timeline is read by its command
    op.drop_constraint(op.f("pk_point_command_event"), "point_command_event", type_="primary")
    op.drop_index("ix_point_command_event_command", "point_command_event")
    op.create_primary_key(op.f("pk_point_command_event"), "point_command_event", ["command_pk", "id"])

    op.create_table(
        "operator_action",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False),
        sa.Column("operator", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.BigInteger()),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("before", postgresql.JSONB()),
        sa.Column("after", postgresql.JSONB()),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_operator_action")),
    )
    op.create_index("ix_operator_action_at", "operator_action", ["at"])
    op.create_index("ix_operator_action_subject", "operator_action", ["tenant_id", "subject"])


def downgrade() -> None:
    """Take back."""
    op.drop_table("operator_action")
    op.create_foreign_key(
        op.f("fk_point_command_event_command_pk"), "point_command_event", "point_command", ["command_pk"], ["id"]
    )
    op.drop_constraint(op.f("pk_point_command_event"), "point_command_event", type_="primary")
    op.create_primary_key(op.f("pk_point_command_event"), "point_command_event", ["id"])
    op.create_index("ix_point_command_event_command", "point_command_event", ["command_pk", "id"])
    op.drop_index("ix_point_command_intent", "point_command")
    op.drop_column("point_command", "review_policy")
    op.drop_column("point_command", "purpose")
    op.drop_index("ix_lane_ready", "lane")
    op.create_index("ix_lane_ready", "lane", ["driver", "ready_at"], postgresql_where=sa.text("state = 'ready'"))
    op.drop_column("lane", "placement")
    op.drop_column("lane", "operator_hold_at")
    op.drop_column("lane", "last_priority")
    op.drop_column("point", "purpose")
    op.drop_index("ix_device_lane", "device")
    for name in ("lane_group", "lane_by", "own_lane_key"):
        op.drop_column("device", name)
    for name in ("waiting_limit", "lane_by"):
        op.drop_column("driver", name)
    for table, had in HAD.items():
        for name in ("max_attempts", "ack_timeout_ms", "depth_limit"):
            op.drop_column(table, name)
        for name in POLICY:
            if name not in had:
                op.drop_column(table, name)
        for name in had:
            standard = {"retry": "strict", "review_policy": "release"}[name]
            op.execute(f"UPDATE {table} SET {name} = '{standard}' WHERE {name} IS NULL")
            op.alter_column(table, name, nullable=False, server_default=standard)


def _one_of(name: str, values: Sequence[str]) -> str:
    listed = ", ".join(f"'{value}'" for value in values)
    return f"{name} IN ({listed})"
