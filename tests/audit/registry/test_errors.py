"""What cannot be used is refused in one line, creates nothing, and shows no password."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from audit.keys import Keys
from audit.registry import store
from audit.yaml_file import InputError
from tests.audit.registry.made import RUN


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("nowhere.db", "no such file"),
        ("sqlite:///nowhere.db", "no such file"),
        (".", "is no file"),
        ("", "nothing is given"),
        ("sqlite://", "give SQLite as"),
        ("sqlite:///:memory:", "give SQLite as"),
        ("mysql://u:hunter2@h/d", "mysql is not known"),
        ("https://u:hunter2@h/d", "https is not known"),
        ("postgresql://u:hunter2@h:port/d", "cannot be read"),
        ("postgresql://u:hunter2@more@h/d", "write an @ of the password as %40"),
        ("://hunter2", "cannot be read"),
        ("postgresql://u:hunter2@127.0.0.1:1/d", "refuse"),
        ("postgresql://u@127.0.0.1:1/d?password=hunter2", "refuse"),
    ],
)
def test_urls_that_lead_nowhere(
    url: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: Keys
) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    for use in (store.open, store.upgrade):
        with pytest.raises(InputError, match=said) as caught:
            use(url)
        assert "hunter2" not in str(caught.value)
        assert "\n" not in str(caught.value)
        assert caught.value.__suppress_context__ or caught.value.__context__ is None
    assert sorted(tmp_path.rglob("*")) == before


def test_files_that_are_no_registry(tmp_path: Path, keys: Keys) -> None:
    path = tmp_path / "f"
    path.write_text("these are notes, and no database " * 100)
    with pytest.raises(InputError, match="it is no SQLite file"):
        store.open(str(path))
    path.write_bytes(b"")
    with pytest.raises(InputError, match="is no registry; dpassay registry create makes one"):
        store.open(str(path))
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE marks (a)")
    with pytest.raises(InputError, match="is no registry"):
        store.open(str(path))
    with pytest.raises(InputError, match="has a table 'marks' of something else"):
        store.create(str(path), keys)
    with pytest.raises(InputError, match="check that its folder exists"):
        store.create(str(tmp_path / "none" / "f"), keys)


def test_a_file_cut_off(tmp_path: Path, keys: Keys) -> None:
    path = tmp_path / "r.db"
    store.create(str(path), keys).close()
    whole = path.read_bytes()
    for size in (100, 5000, len(whole) // 2):
        path.write_bytes(whole[:size])
        with pytest.raises(InputError, match=r"r\.db: "):
            store.open(str(path))


def test_a_locked_database(url: str, keys: Keys) -> None:
    with store.create(url, keys) as registry:
        place = store.Database(url)
        with (
            place.writing(),
            store.open(url, timeout=0.2) as second,
            pytest.raises(InputError, match=r"locked by another program for 0\.2 s"),
        ):
            second.add_run(RUN, keys)
        place.close()
        registry.add_run(RUN, keys)
        assert registry.verify(keys.root) == ()


def test_a_wrong_password_is_not_shown(postgres, keys: Keys) -> None:
    postgres.emptied()
    for use in (store.open, store.upgrade, lambda url: store.create(url, keys)):
        with pytest.raises(InputError) as caught:
            use(postgres.url("postgres", "hunter2"))
        assert "password authentication failed" in str(caught.value)
        assert "auditor:***@127.0.0.1" in str(caught.value)
        assert "hunter2" not in str(caught.value)
    with pytest.raises(InputError, match="does not exist"):
        store.open(postgres.url("nowhere"))
    with pytest.raises(InputError, match="is no registry"):
        store.open(postgres.url("postgres"))
    with store.create(postgres.url("postgres"), keys) as registry:
        assert "correct-horse" not in repr(vars(registry)) + registry.name


def test_reading_needs_no_right_to_write(tmp_path: Path, keys: Keys) -> None:
    path = tmp_path / "r.db"
    store.create(str(path), keys).close()
    before = path.read_bytes(), sorted(tmp_path.iterdir())
    path.chmod(0o444)
    with store.open(str(path)) as registry:
        assert registry.verify(keys.root) == ()
    assert (path.read_bytes(), sorted(tmp_path.iterdir())) == before
