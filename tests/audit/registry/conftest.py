"""Both databases: a SQLite file, and a PostgreSQL cluster of our own where its programs are."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa

from audit.keys import Keys

PASSWORD = "correct-horse"


@dataclass(frozen=True)
class Cluster:
    port: int

    def url(self, database: str, password: str = PASSWORD) -> str:
        return f"postgresql://auditor:{password}@127.0.0.1:{self.port}/{database}"

    def emptied(self) -> str:
        """The URL of a database that holds nothing."""
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute("DROP SCHEMA public CASCADE")
            connection.execute("CREATE SCHEMA public")
        return self.url("postgres")


def _program(name: str) -> str | None:
    debian = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return str(debian[-1]) if debian else shutil.which(name)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Cluster]:
    initdb, control = _program("initdb"), _program("pg_ctl")
    if initdb is None or control is None:
        pytest.skip("no PostgreSQL here")
    folder = Path(tempfile.mkdtemp(prefix="dpassay-postgres-"))
    as_user = []
    if os.geteuid() == 0:  # the server refuses to run as root
        if shutil.which("runuser") is None:
            pytest.skip("no runuser to start PostgreSQL with")
        as_user = ["runuser", "-u", "postgres", "--"]
        shutil.chown(folder, "postgres")
    secret, data = folder / "password", folder / "data"
    secret.write_text(PASSWORD)
    secret.chmod(0o644)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def call(*command: str) -> None:
        with open(folder.parent / f"{folder.name}.log", "wb") as log:
            subprocess.run(
                [*as_user, *command], check=True, stdout=log, stderr=log, cwd=folder, timeout=60
            )

    options = f"-p {port} -k {folder} -c listen_addresses=127.0.0.1 -c fsync=off"
    try:
        call(initdb, "-D", str(data), "-U", "auditor", "-A", "scram-sha-256", "--no-sync",
             f"--pwfile={secret}", "-E", "UTF8", "--locale=C")  # fmt: skip
        call(control, "-D", str(data), "-w", "-o", options, "start")
        yield Cluster(port)
        call(control, "-D", str(data), "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        (folder.parent / f"{folder.name}.log").unlink(missing_ok=True)


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "registry.db")
    cluster: Cluster = request.getfixturevalue("postgres")
    return cluster.emptied()


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys.create(tmp_path / "keys")


class Intruder:
    """Somebody who may do everything in the database, and has no key."""

    def __init__(self, url: str) -> None:
        address = url if "://" in url else f"sqlite:///{url}"
        self._engine = sa.create_engine(address.replace("postgresql:", "postgresql+psycopg:"))

    def run(self, *statements: str, **values: object) -> None:
        with self._engine.begin() as connection:
            if self._engine.dialect.name == "postgresql":
                connection.exec_driver_sql("SET session_replication_role = replica")  # no triggers
            else:
                for (name,) in connection.exec_driver_sql(
                    "SELECT name FROM sqlite_master WHERE type = 'trigger'"
                ).all():
                    connection.exec_driver_sql(f"DROP TRIGGER {name}")
            for statement in statements:
                connection.execute(sa.text(statement), values)
        self._engine.dispose()

    def try_plainly(self, statement: str) -> None:
        """With the triggers in place."""
        try:
            with self._engine.begin() as connection:
                connection.execute(sa.text(statement))
        finally:
            self._engine.dispose()


@pytest.fixture
def intruder(url: str) -> Intruder:
    return Intruder(url)
