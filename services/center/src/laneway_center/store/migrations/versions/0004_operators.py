"""Dead ends: what operators see as dead letters, each handled once; indexes for their questions.

Revision: 0004, after 0003.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0004"
down_revision: str | None = "0003"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "dead_end",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("tenant_id", sa.BigInteger(), nullable=False),
        sa.Column("command_pk", sa.BigInteger()),
        sa.Column("command_id", sa.Uuid()),
        sa.Column("letter_id", sa.BigInteger()),
        sa.Column("ended_as", sa.Text()),
        sa.Column("attempt", sa.Integer()),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("error_code", sa.Text()),
        sa.Column("explanation", sa.Text()),
        sa.Column("driver", sa.Text()),
        sa.Column("device_id", sa.BigInteger()),
        sa.Column("state", sa.Text(), server_default="open", nullable=False),
        sa.Column("handled_at", sa.DateTime(timezone=True)),
        sa.Column("handled_by", sa.Text()),
        sa.Column("handled_why", sa.Text()),
        sa.CheckConstraint("state IN ('open', 'replayed', 'discarded')", name=op.f("ck_dead_end_state_known")),
        sa.CheckConstraint("ended_as IN ('DEAD', 'EXPIRED', 'TIMEOUT')", name=op.f("ck_dead_end_ended_as_known")),
        sa.CheckConstraint("(state = 'open') = (handled_at IS NULL)", name=op.f("ck_dead_end_handled_once")),
        sa.CheckConstraint("(command_pk IS NULL) = (ended_as IS NULL)", name=op.f("ck_dead_end_an_end_of_a_command")),
        sa.CheckConstraint(
            "(command_pk IS NULL) = (letter_id IS NOT NULL)", name=op.f("ck_dead_end_command_or_message")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_dead_end")),
    )
    # before the indexes: ends and letters from before this release are open
    op.execute(
        "INSERT INTO dead_end (at, tenant_id, command_pk, command_id, ended_as, attempt, reason, error_code,"
        " explanation, driver, device_id)"
        " SELECT c.finished_at, c.tenant_id, c.id, c.command_id, c.status, c.attempt,"
        " CASE c.status WHEN 'EXPIRED' THEN 'expired' WHEN 'TIMEOUT' THEN 'timeout'"
        " ELSE CASE WHEN c.letter IN ('rejected', 'delivery_limit') THEN c.letter ELSE 'attempts' END END,"
        " c.error_code, c.error_message, c.driver, c.device_id"
        " FROM (SELECT * FROM point_command UNION ALL SELECT * FROM point_command_history) c"
        " WHERE c.status IN ('DEAD', 'EXPIRED') OR (c.status = 'TIMEOUT' AND c.retry_safety = 'safe')"
        " ORDER BY c.finished_at, c.id"
    )
    op.execute(
        "INSERT INTO dead_end (at, tenant_id, command_id, letter_id, attempt, reason, explanation)"
        " SELECT d.received_at, COALESCE(d.tenant_id, 1), d.command_id, d.id, d.attempt,"
        " CASE WHEN d.reason IN ('refused_value', 'refused_transition') THEN d.reason"
        " WHEN d.command_id IS NULL THEN 'unreadable' ELSE 'unknown_command' END, d.explanation"
        " FROM dead_letter d WHERE d.reason IN ('unreadable', 'refused_value', 'refused_transition')"
        " OR d.command_id IS NULL OR NOT EXISTS ("
        "SELECT FROM (SELECT * FROM point_command UNION ALL SELECT * FROM point_command_history) c"
        " WHERE c.command_id = d.command_id AND (d.tenant_id IS NULL OR c.tenant_id = d.tenant_id))"
        " ORDER BY d.id"
    )
    op.create_index(
        "uq_dead_end_open",
        "dead_end",
        ["command_pk"],
        unique=True,
        postgresql_where=sa.text("state = 'open' AND command_pk IS NOT NULL"),
    )
    op.create_index("ix_dead_end_state", "dead_end", ["tenant_id", "state", "at", "id"])
    op.create_index("ix_dead_end_device", "dead_end", ["tenant_id", "device_id", "at"])
    op.create_index("ix_dead_end_command", "dead_end", ["tenant_id", "command_id"])
    op.create_index("ix_dead_end_at", "dead_end", ["at"])
    op.create_index("ix_operator_action_operator", "operator_action", ["operator", "id"])
    op.create_index(
        "ix_point_command_intent_done",
        "point_command",
        ["lane_id", "device_id", "intent_key", "id"],
        postgresql_where=sa.text("intent_key IS NOT NULL AND finished_at IS NOT NULL"),
    )
    op.create_index(
        "ix_point_command_reviews",
        "point_command",
        ["tenant_id", "id"],
        postgresql_where=sa.text("status = 'MANUAL_REVIEW'"),
    )


def downgrade() -> None:
    """Take back."""
    op.drop_index("ix_point_command_reviews", "point_command")
    op.drop_index("ix_point_command_intent_done", "point_command")
    op.drop_index("ix_operator_action_operator", "operator_action")
    op.drop_table("dead_end")
