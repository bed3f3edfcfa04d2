"""History of final commands and their timelines, partitioned by the day on which a command ended.

Revision: 0003, after 0002.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0003"
down_revision: str | None = "0002"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    """Apply."""
    op.create_index(
        "ix_point_command_finished",
        "point_command",
        ["finished_at"],
        postgresql_where=sa.text("finished_at IS NOT NULL"),
    )
    # Names, types and NOT NULL of the hot tables, nothing else. Partitions are made by the schedule role.
    op.execute("CREATE TABLE point_command_history (LIKE point_command) PARTITION BY RANGE (finished_at)")
    op.create_primary_key(op.f("pk_point_command_history"), "point_command_history", ["id", "finished_at"])
    op.create_index("ix_point_command_history_command", "point_command_history", ["command_id", "tenant_id"])
    op.create_index("ix_point_command_history_device", "point_command_history", ["tenant_id", "device_id", "id"])

    op.execute(
        "CREATE TABLE point_command_event_history (LIKE point_command_event, finished_at timestamptz NOT NULL)"
        " PARTITION BY RANGE (finished_at)"
    )
    op.create_primary_key(op.f("pk_point_command_event_history"), "point_command_event_history", ["id", "finished_at"])
    op.create_index("ix_point_command_event_history_command", "point_command_event_history", ["command_pk", "id"])


def downgrade() -> None:
    """Take back: what has not been dropped goes into the hot tables again."""
    for table in ("point_command", "point_command_event"):
        op.execute(_BACK.format(table=table))
    op.drop_index("ix_point_command_finished", "point_command")


_BACK = """
DO $$
DECLARE
  names text := (SELECT string_agg(quote_ident(attname), ', ' ORDER BY attnum) FROM pg_attribute
                 WHERE attrelid = '{table}'::regclass AND attnum > 0 AND NOT attisdropped);
  detached regclass;
BEGIN
  EXECUTE format('INSERT INTO {table} (%s) OVERRIDING SYSTEM VALUE SELECT %s FROM {table}_history', names, names);
  DROP TABLE {table}_history;
  FOR detached IN SELECT oid FROM pg_class
    WHERE relname ~ '^{table}_history_[0-9]{{8}}$' AND relnamespace = current_schema()::regnamespace
  LOOP
    EXECUTE format('DROP TABLE %s', detached);
  END LOOP;
END $$
"""
