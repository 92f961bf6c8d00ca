"""The tables of a registry. Migrations make them; this is what they come to."""

from __future__ import annotations

from sqlalchemy import (
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
)

VERSION_TABLE = "registry_version"
VERSIONS = ("1", "2")  # as in migrations/versions, oldest first

metadata = MetaData()

entries = Table(
    "entries",
    metadata,
    Column("position", Integer, primary_key=True, autoincrement=False),
    Column("kind", Text, nullable=False),
    Column("body", Text, nullable=False),
    Column("previous", Text, nullable=False),
    Column("hash", Text, nullable=False, unique=True),
    Column("key_id", Text, nullable=False),
    Column("signature", Text, nullable=False),
)

blocks = Table(
    "blocks",
    metadata,
    Column("entry", ForeignKey("entries.position"), primary_key=True, autoincrement=False),
    Column("content", LargeBinary, nullable=False),  # Parquet
)

# An index into the blocks, which are signed. Clustered by block, so that one can be checked alone.
marks = Table(
    "marks",
    metadata,
    Column("entry", ForeignKey("blocks.entry"), nullable=False),
    Column("row", Integer, nullable=False),
    Column("tag", LargeBinary),
    Column("digest", LargeBinary, nullable=False),
    PrimaryKeyConstraint("entry", "row"),
    Index("marks_tag", "tag"),
    Index("marks_digest", "digest"),
    sqlite_with_rowid=False,
)
