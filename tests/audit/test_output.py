"""An output folder appears whole or not at all, and nothing of the user's is overwritten."""

from __future__ import annotations

from pathlib import Path

import pytest

from audit.output import RECORD, check_free, folder
from audit.yaml_file import InputError


def test_the_folder_appears_when_the_block_ends(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "report"
    with folder(out, force=False) as building:
        (building / RECORD).write_text("{}")
        assert not out.exists()
    assert (out / RECORD).read_text() == "{}"
    assert [p.name for p in out.parent.iterdir()] == ["report"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_nothing_is_left_of_an_interrupted_one(tmp_path: Path, error: type[BaseException]) -> None:
    def interrupted() -> None:
        with folder(tmp_path / "report", force=False) as building:
            (building / RECORD).write_text("{")
            raise error

    with pytest.raises(error):
        interrupted()
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_replacement_keeps_the_old_one(tmp_path: Path) -> None:
    out = tmp_path / "report"
    with folder(out, force=False) as building:
        (building / RECORD).write_text("old")
    with pytest.raises(KeyboardInterrupt), folder(out, force=True):
        raise KeyboardInterrupt
    assert (out / RECORD).read_text() == "old"
    with folder(out, force=True) as building:
        (building / RECORD).write_text("new")
    assert [p.name for p in tmp_path.iterdir()] == ["report"]
    assert (out / RECORD).read_text() == "new"


def test_what_stands_there_is_not_overwritten(tmp_path: Path) -> None:
    out = tmp_path / "report"
    out.mkdir()
    (out / RECORD).write_text("{}")
    with pytest.raises(InputError, match="--force"), folder(out, force=False):
        pass
    (out / RECORD).rename(out / "thesis.txt")
    with pytest.raises(InputError, match="did not write it"), folder(out, force=True):
        pass
    with pytest.raises(InputError, match="is a file"), folder(out / "thesis.txt", force=True):
        pass
    assert (out / "thesis.txt").read_text() == "{}"


def test_what_appeared_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    out = tmp_path / "report"

    def slow(force: bool) -> None:
        with folder(out, force) as building:
            (building / RECORD).write_text("{}")
            out.mkdir()
            (out / "thesis.txt").write_text("years of work")

    for force, said in ((False, "exists; choose another"), (True, "did not write it")):
        with pytest.raises(InputError, match=said):
            slow(force)
        assert (out / "thesis.txt").read_text() == "years of work"
        assert [p.name for p in tmp_path.iterdir()] == ["report"]
        (out / "thesis.txt").unlink()
        out.rmdir()


def test_force_does_not_delete_what_a_user_put_into_an_audits_folder(tmp_path: Path) -> None:
    out = tmp_path / "report"
    out.mkdir()
    (out / RECORD).write_text("{}")
    (out / "thesis.txt").write_text("years of work")
    with pytest.raises(InputError, match=r"thesis\.txt"), folder(out, force=True):
        pass
    assert (out / "thesis.txt").read_text() == "years of work"


def test_another_command_replaces_a_folder_of_its_own_alone(tmp_path: Path) -> None:
    written = ("attribute.json", "guesses.parquet")
    for name in written:
        out = tmp_path / name
        out.mkdir()
        (out / name).write_text("old")
    with folder(tmp_path / "attribute.json", True, written) as building:
        (building / "attribute.json").write_text("new")
    assert (tmp_path / "attribute.json" / "attribute.json").read_text() == "new"
    with pytest.raises(InputError, match=r"holds no attribute\.json"):
        check_free(tmp_path / "guesses.parquet", True, written)
    with pytest.raises(InputError, match=r"holds no audit\.json"):
        check_free(tmp_path / "attribute.json", True)


def test_a_place_that_cannot_be_written_is_an_input_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    names = ["file/report", "link", "here", "x" * 300]
    for out in [*(tmp_path / name for name in names), Path(), Path("/proc/report")]:
        with pytest.raises(InputError, match="--out"), folder(out, force=True):
            pass
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "here", "link"]
