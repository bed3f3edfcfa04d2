"""Alembic environment: runs over a connection that the caller hands in (see store/migrate.py)."""

from alembic import context

from laneway_center.store.tables import metadata

connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=metadata,
    transaction_per_migration=True,
    compare_type=True,
    compare_server_default=True,
)
with context.begin_transaction():
    context.run_migrations()
