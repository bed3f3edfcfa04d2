"""PostgreSQL: tables, migrations, and every statement by name (queries.sql)."""
