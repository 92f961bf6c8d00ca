"""Entries, blocks and the index of marks."""

import sqlalchemy as sa
from alembic import op

revision = "1"
down_revision = None


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "entries",
        sa.Column("position", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("previous", sa.Text, nullable=False),
        sa.Column("hash", sa.Text, nullable=False, unique=True),
        sa.Column("key_id", sa.Text, nullable=False),
        sa.Column("signature", sa.Text, nullable=False),
    )
    op.create_table(
        "blocks",
        sa.Column(
            "entry",
            sa.Integer,
            sa.ForeignKey("entries.position"),
            primary_key=True,
            autoincrement=False,
        ),
        sa.Column("content", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "marks",
        sa.Column("entry", sa.Integer, sa.ForeignKey("blocks.entry"), nullable=False),
        sa.Column("row", sa.Integer, nullable=False),
        sa.Column("tag", sa.LargeBinary),
        sa.Column("digest", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("entry", "row"),
        sqlite_with_rowid=False,
    )
    op.create_index("marks_tag", "marks", ["tag"])
    op.create_index("marks_digest", "marks", ["digest"])
