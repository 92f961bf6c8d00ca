"""Where a registry is kept: a SQLite file, or PostgreSQL by URL. Errors are one line.

A transaction that writes locks out other writers from its beginning: BEGIN IMMEDIATE in SQLite, a
lock of the entries in PostgreSQL. Readers wait for neither. No message ever has a password.
"""

from __future__ import annotations

import importlib.util
import random
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, OperationalError, SQLAlchemyError

from audit.registry.schema import VERSION_TABLE, VERSIONS
from audit.yaml_file import InputError

PATIENCE = 0.01  # seconds between two attempts to take a lock, at most

_URL_FORM = "write postgresql://user:password@host/database, or a file's path for SQLite"
_SECRET_OPTIONS = ("password", "passfile", "sslpassword", "sslkey", "options", "service")
_CREATING = 7_364_726_001  # any number, the same for all who create a registry


class Database:
    """One database, opened when it is first used.

    Attributes:
        name: the file, or the URL without its password.
    """

    def __init__(self, url: str, timeout: float = 30.0, creating: bool = False) -> None:
        """Nothing is opened yet; ``timeout`` is how many seconds to wait for others' locks.

        Raises:
            InputError: if the URL cannot be read or is of a database that is not known here.
        """
        self._timeout = timeout
        self.path, self._url = _located(url)
        self._secrets = [self._url.password] if self._url and self._url.password else []
        if self._url is None:
            self.name = str(self.path)
            mode = "rwc" if creating else "rw"
            self._engine = sa.create_engine(
                "sqlite://",
                creator=lambda: _sqlite(self.path, mode, timeout),
                poolclass=sa.QueuePool,
                hide_parameters=True,
            )
        else:
            shown = self._url.difference_update_query(_SECRET_OPTIONS)
            self.name = shown.render_as_string(hide_password=True)
            option = self._url.query.get("password")
            self._secrets += [option] if isinstance(option, str) else list(option or ())
            self._engine = sa.create_engine(
                self._url, hide_parameters=True, connect_args={"connect_timeout": 10}
            )

    @property
    def sqlite(self) -> bool:
        """Whether it is a SQLite file."""
        return self._url is None

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    @contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """A transaction that reads.

        Raises:
            InputError: if the database is missing, damaged, locked or does not let us in.
        """
        if self.path is not None and not self.path.is_file():
            what = "is no file" if self.path.exists() else "no such file"
            raise InputError(f"{self.name}: {what}; dpassay registry create makes a registry")
        with self._plainly(), self._engine.connect() as connection:
            if self.sqlite:
                connection.exec_driver_sql("BEGIN")
            yield connection
            connection.rollback()

    @contextmanager
    def writing(self, lock: str | None = "entries") -> Iterator[sa.Connection]:
        """A transaction that writes and lets no other writer in; kept only if the block ends well.

        Raises:
            InputError: as ``reading``.
        """
        with self._plainly(), self._engine.connect() as connection:
            if self.sqlite:
                self._begin(connection)
            else:
                wait = f"{round(self._timeout * 1000)}ms"
                connection.execute(sa.select(sa.func.set_config("lock_timeout", wait, True)))
                if lock is None:
                    connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_CREATING)))
                else:
                    connection.execute(sa.text(f"LOCK TABLE {lock} IN EXCLUSIVE MODE"))
            try:
                yield connection
                connection.commit()
            except BaseException:
                connection.rollback()
                raise

    def _begin(self, connection: sa.Connection) -> None:
        """Take SQLite's write lock, asking often: its own waiting grows too patient to get it."""
        end = time.monotonic() + self._timeout
        connection.exec_driver_sql("PRAGMA busy_timeout = 0")
        while True:
            try:
                connection.exec_driver_sql("BEGIN IMMEDIATE")
                break
            except OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > end:
                    raise
            time.sleep(random.uniform(0.001, PATIENCE))
        connection.exec_driver_sql(f"PRAGMA busy_timeout = {round(self._timeout * 1000)}")

    @contextmanager
    def _plainly(self) -> Iterator[None]:
        try:
            yield
        except SQLAlchemyError as error:
            raise InputError(f"{self.name}: {self._reason(error)}") from None
        except OSError as error:
            raise InputError(f"{self.name}: cannot be used: {error.strerror}") from None

    def _reason(self, error: SQLAlchemyError) -> str:
        original = getattr(error, "orig", None) or error
        text = " ".join(str(original).split()) or type(original).__name__
        for secret in self._secrets:
            text = text.replace(secret, "***")
        if "database is locked" in text or type(original).__name__ == "LockNotAvailable":
            return f"is locked by another program for {self._timeout:g} s; try again when it ends"
        if "file is not a database" in text:
            return "is no registry: it is no SQLite file"
        if "unable to open database file" in text:
            return "cannot be opened; check that its folder exists and that you may write there"
        return f"the database refuses: {text}"


def version(connection: sa.Connection) -> str | None:
    """Version of the tables; None where there is no registry."""
    if not sa.inspect(connection).has_table(VERSION_TABLE):
        return None
    found = connection.execute(sa.text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()  # noqa: S608 (a constant)
    return None if found is None else str(found)


def require_current(connection: sa.Connection, name: str) -> None:
    """Refuse tables that this program cannot use as they are.

    Raises:
        InputError: if there is no registry, or one of another version.
    """
    found = version(connection)
    if found is None:
        raise InputError(f"{name}: is no registry; dpassay registry create makes one")
    if found not in VERSIONS:
        raise InputError(
            f"{name}: its tables are of version {found}, newer than this program's {VERSIONS[-1]}; "
            "install a newer dpassay"
        )
    if found != VERSIONS[-1]:
        raise InputError(
            f"{name}: its tables are of version {found}, this program's of {VERSIONS[-1]}; run: "
            "dpassay registry upgrade"
        )


def migrate(connection: sa.Connection, to: str = "head") -> None:
    """Run the migrations up to a version, within the caller's transaction."""
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    command.upgrade(config, to)


def _located(url: str) -> tuple[Path | None, sa.URL | None]:
    """The file of a SQLite database, or else a URL. What is wrong with it is said without it."""
    if "://" not in url:
        if not url.strip():
            raise InputError(f"registry: nothing is given; {_URL_FORM}")
        return Path(url), None
    try:
        parsed = sa.make_url(url)
        backend = parsed.get_backend_name()
    except (ArgumentError, ValueError):
        raise InputError(f"registry: the URL cannot be read; {_URL_FORM}") from None
    if backend == "sqlite":
        if not parsed.database or parsed.database == ":memory:" or parsed.query or parsed.host:
            raise InputError("registry: give SQLite as sqlite:///file, or the file's path alone")
        return Path(parsed.database), None
    if backend not in ("postgresql", "postgres"):
        raise InputError(f"registry: {backend} is not known; {_URL_FORM}")
    if "@" in (parsed.host or ""):
        raise InputError("registry: write an @ of the password as %40, a / as %2F")
    if importlib.util.find_spec("psycopg") is None:
        raise InputError("registry: PostgreSQL needs psycopg: pip install 'dpassay[postgres]'")
    return None, parsed.set(drivername="postgresql+psycopg")


def _sqlite(path: Path | None, mode: str, timeout: float) -> sqlite3.Connection:
    assert path is not None
    connection = sqlite3.connect(
        f"file:{quote(str(path.absolute()))}?mode={mode}",
        uri=True,
        timeout=timeout,
        isolation_level=None,  # transactions begin where we say
        check_same_thread=False,
    )
    connection.text_factory = lambda data: data.decode("utf-8", "replace")
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA cache_size = -65536")  # 64 MB: the index is written at random places
    return connection
