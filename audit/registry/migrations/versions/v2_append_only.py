"""Triggers that refuse to change or delete anything. Signatures are the proof; these stop slips."""

from alembic import op

revision = "2"
down_revision = "1"

TABLES = ("entries", "blocks", "marks")


def upgrade() -> None:
    """Make the triggers."""
    if op.get_bind().dialect.name == "sqlite":
        for table in TABLES:
            for verb in ("UPDATE", "DELETE"):
                op.execute(
                    f"CREATE TRIGGER {table}_no_{verb.lower()} BEFORE {verb} ON {table} "
                    "BEGIN SELECT RAISE(ABORT, 'a registry is append-only'); END"
                )
        return
    op.execute(
        "CREATE FUNCTION registry_is_append_only() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'a registry is append-only'; END $$"
    )
    for table in TABLES:
        op.execute(
            f"CREATE TRIGGER {table}_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} "
            "FOR EACH STATEMENT EXECUTE FUNCTION registry_is_append_only()"
        )
