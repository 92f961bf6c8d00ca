"""``dpassay keys``: nothing secret is printed, and refusals are one line."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner, Result

from audit.cli.keys import command
from audit.keys import read


def _keys(*arguments: str) -> Result:
    return CliRunner().invoke(command, arguments)


def test_create_show_rotate(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    results = [_keys("create", str(folder)), _keys("show", str(folder))]
    root = read(folder).root.hex()
    results += [_keys("rotate", str(folder)), _keys("show", str(folder), "--json")]
    assert [r.exit_code for r in results] == [0] * 4
    assert results[0].stdout == results[1].stdout
    assert all(root in r.stdout for r in results)
    assert "rotated 1 times" in results[2].stdout
    assert json.loads(results[3].stdout) == json.loads((folder / "public.json").read_text())
    data = json.loads((folder / "keys.json").read_text())
    for secret in (data["private_key"], *(m["secret"] for m in data["marking"])):
        assert not any(secret in r.output for r in results)


def test_refusals_are_one_line(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    _keys("create", str(folder))
    (folder / "keys.json").chmod(0o644)
    for arguments in (("show", str(folder)), ("rotate", str(folder)), ("create", str(folder))):
        result = _keys(*arguments)
        assert result.exit_code == 2
        assert result.stdout == ""
        assert result.stderr.startswith("dpassay: ")
        assert result.stderr.count("\n") == 1
    assert "chmod 600" in _keys("show", str(folder)).stderr
