"""The folder of secrets: whose it is, what it shows, and what a rotation keeps and forgets."""

from __future__ import annotations

import copy
import hashlib
import json
import logging
import os
import pickle
import stat
import traceback
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from audit import keys as module
from audit.keys import PRIVATE, PUBLIC, Keys, Link, endorsed, key_id, read, succession, verified
from audit.yaml_file import InputError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    Keys.create(tmp_path / "keys")
    return tmp_path / "keys"


def _secrets(folder: Path) -> list[str]:
    data = json.loads((folder / PRIVATE).read_text())
    return [data["private_key"], *(m["secret"] for m in data["marking"])]


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_created_keys_can_be_read_and_used(folder: Path) -> None:
    keys = read(folder)
    id, secret = keys.marking
    assert len(secret) == 32
    assert id == hashlib.sha256(b"dpassay.key-id/1" + secret).hexdigest()[:16] == key_id(secret)
    assert keys.secret(id) == secret
    signer, signature = keys.sign(b"said")
    assert signer == keys.id == key_id(keys.public)
    Ed25519PublicKey.from_public_bytes(keys.public).verify(signature, b"said")
    assert verified(keys.root, signature, b"said")
    assert not verified(keys.root, signature, b"unsaid")
    assert not verified(b"", b"", b"said")


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")
def test_only_the_owner_can_read_from_the_first_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    put = module._put
    monkeypatch.setattr(
        module, "_put", lambda file, data: (seen.append(os.fstat(file)), put(file, data))
    )
    old = os.umask(0)
    try:
        Keys.create(tmp_path / "keys")
        Keys.rotate(tmp_path / "keys")
    finally:
        os.umask(old)
    assert [(stat.S_IMODE(s.st_mode), s.st_size) for s in seen[::2]] == [(0o600, 0)] * 2
    assert _mode(tmp_path / "keys") == 0o700
    assert _mode(tmp_path / "keys" / PRIVATE) == 0o600
    assert sorted(p.name for p in (tmp_path / "keys").iterdir()) == [PRIVATE, PUBLIC]


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")
@pytest.mark.parametrize(
    ("name", "mode", "fix"),
    [
        (PRIVATE, 0o644, "chmod 600"),
        (PRIVATE, 0o640, "chmod 600"),
        (PRIVATE, 0o602, "chmod 600"),
        (".", 0o770, "chmod 700"),
        (".", 0o702, "chmod 700"),
    ],
)
def test_what_others_can_reach_is_refused(folder: Path, name: str, mode: int, fix: str) -> None:
    (folder / name).chmod(mode)
    for use in (read, Keys.rotate):
        with pytest.raises(InputError, match=f"others can .* run: {fix} "):
            use(folder)
    assert not (folder / "keys.json.new").exists()


def test_a_rotation_keeps_marks_and_root_and_forgets_the_old_private_key(folder: Path) -> None:
    first = read(folder)
    (old_private, _), (old_id, old_secret) = _secrets(folder), first.marking
    second, third = Keys.rotate(folder), Keys.rotate(folder)
    assert first.root == second.root == third.root == read(folder).root
    assert len({first.id, second.id, third.id}) == 3
    assert third.marking_ids == (old_id, second.marking[0], third.marking[0])
    assert third.secret(old_id) == old_secret
    assert old_private not in (folder / PRIVATE).read_text()
    assert succession(third.root, third.succession) == (first.public, second.public, third.public)
    assert read(folder).public == third.public
    assert json.loads((folder / PUBLIC).read_text()) == third.public_part()


def test_a_succession_ends_at_the_first_bad_link(folder: Path) -> None:
    Keys.rotate(folder)
    keys = Keys.rotate(folder)
    one, two = keys.succession
    assert succession(keys.root, (two, one)) == (keys.root,)
    assert succession(keys.root, (one, one)) == (keys.root, bytes.fromhex(one.public_key))
    assert endorsed(keys.root, one)
    for bad in (Link("", ""), Link("zz", "zz"), Link(one.public_key, two.endorsement)):
        assert not endorsed(keys.root, bad)


def test_nothing_secret_is_shown(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    Keys.rotate(folder)
    keys = read(folder)
    caplog.set_level(logging.DEBUG)
    logging.getLogger("any").warning("%s %r %s", keys, keys, [keys])
    shown = [repr(keys), str(keys), f"{keys}", caplog.text, str(keys.public_part())]
    for fault in (
        lambda: keys.secret("0" * 16),
        lambda: pickle.dumps(keys),
        lambda: copy.deepcopy(keys),
        lambda: keys.nothing,
    ):
        try:
            fault()
        except (InputError, TypeError, AttributeError) as error:
            shown += ["".join(traceback.TracebackException.from_exception(error).format())]
    assert len(shown) == 9
    shown.append((folder / PUBLIC).read_text())
    secrets = _secrets(folder)
    assert len(secrets) == 3
    for secret in secrets:
        assert not any(secret in text or repr(bytes.fromhex(secret)) in text for text in shown)
    assert keys.id in shown[0]
    assert keys.marking[0] in shown[0]


@pytest.mark.parametrize("fault", ["cut", "other secret", "other key", "no key", "list", "bytes"])
def test_a_damaged_file_is_one_line_without_its_content(folder: Path, fault: str) -> None:
    path = folder / PRIVATE
    secrets = _secrets(folder)
    data = json.loads(path.read_text())
    if fault == "other secret":
        data["marking"][0]["secret"] = "ab" * 32
    if fault == "other key":
        data["private_key"] = "ab" * 32
    if fault == "no key":
        data["private_key"] = secrets[0][:-2] + "zz"
    text = {"cut": path.read_text()[:-40], "list": json.dumps([secrets])}.get(fault)
    content = b"\xff" + secrets[0].encode() if fault == "bytes" else None
    path.write_bytes(content or (text or json.dumps(data)).encode())
    with pytest.raises(InputError, match="is damaged; restore it") as caught:
        read(folder)
    trace = "".join(traceback.TracebackException.from_exception(caught.value).format())
    assert not any(secret[:16] in trace for secret in [*secrets, "ab" * 32])


def test_folders_that_cannot_be_used(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="make keys: dpassay keys create"):
        read(tmp_path / "none")
    with pytest.raises(InputError, match="is not empty"):
        Keys.create(folder)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        Keys.create(tmp_path / "file")
    with pytest.raises(InputError, match="cannot be read"):
        read(tmp_path / "file")
    data = json.loads((folder / PRIVATE).read_text())
    (folder / PRIVATE).write_text(json.dumps({**data, "schema": "dpassay.keys/9"}))
    with pytest.raises(InputError, match="schema: this program reads"):
        read(folder)


def test_a_rotation_that_was_killed_leaves_the_old_keys(folder: Path) -> None:
    before = read(folder)
    (folder / "keys.json.new").write_text("half")
    with pytest.raises(InputError, match=r"rm .*keys\.json\.new"):
        Keys.rotate(folder)
    assert read(folder).public == before.public
    (folder / "keys.json.new").unlink()
    assert Keys.rotate(folder).root == before.root


def test_a_rotation_that_fails_leaves_the_old_keys(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (folder / PRIVATE).read_bytes()

    def full(file: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(InputError, match="No space left"):
            Keys.rotate(folder)
    assert (folder / PRIVATE).read_bytes() == before
    assert sorted(p.name for p in folder.iterdir()) == [PRIVATE, PUBLIC]
