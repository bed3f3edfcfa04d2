"""PostgreSQL: tables, migrations, and every statement by name (the .sql files)."""
