"""Where alembic starts: it is handed an open transaction by audit/registry/database.py."""

from alembic import context

from audit.registry.schema import VERSION_TABLE, metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
)
with context.begin_transaction():
    context.run_migrations()
