"""A sealed folder: every change to it is found, and no seal leads out of it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from audit import dsse
from audit.keys import Keys
from audit.seal import PAYLOAD_TYPE, PREDICATE_TYPE, SEAL, STATEMENT_TYPE, seal, statement, verify
from audit.yaml_file import InputError
from tests.audit.sealing import KEY, OTHER, PUBLIC, make, sealed, states


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("audit"))


@pytest.fixture
def audit(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A sealed audit with its inputs, to be tampered with, in the working folder."""
    shutil.copytree(made.parent, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    sealed(tmp_path / "out")
    return tmp_path / "out"


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / "a.txt").write_bytes(b"hello\n")
    (folder / "deep" / "er" / "权重.bin").write_bytes(bytes(3_000_000))
    (folder / "deep" / SEAL).write_bytes(b"a seal of somebody else")
    return folder


def payload(folder: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(dsse.read((folder / SEAL).read_bytes()).payload)
    return read


def write(folder: Path, body: Any, *, kind: str = PAYLOAD_TYPE) -> None:
    """Sign whatever it is, as somebody does who has the key and no good intentions."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    signature = dsse.Signature(PUBLIC.hex(), KEY.sign(dsse.pae(kind, raw)))
    (folder / SEAL).write_text(dsse.to_json(dsse.Envelope(kind, raw, (signature,))))


def test_a_seal_holds_every_file_and_what_the_audit_says_of_itself(audit: Path) -> None:
    said = payload(audit)
    assert said["_type"] == STATEMENT_TYPE
    assert said["predicateType"] == PREDICATE_TYPE
    digests = {s["name"]: s["digest"]["sha256"] for s in said["subject"]}
    # the independent truth: coreutils
    listed = subprocess.run(
        ["sha256sum", *digests], cwd=audit, capture_output=True, text=True, check=True
    )
    assert [line.split() for line in listed.stdout.splitlines()] == [
        [sha, name] for name, sha in digests.items()
    ]
    found = {p.relative_to(audit).as_posix() for p in audit.rglob("*") if p.is_file()}
    assert set(digests) == found - {SEAL}
    about, texts = said["predicate"]["audit"], said["predicate"]["texts"]
    assert about["outcome"] == json.loads((audit / "audit.json").read_text())["verdict"]["outcome"]
    assert about["command"].endswith("--out out --baseline before/audit.json")
    roles = [i["role"] for i in about["inputs"]]
    assert roles == ["configuration", "policy", "baseline", "scores", "ledger", "model file"]
    for read in about["inputs"]:
        content = (audit.parent / read["path"]).read_bytes()
        assert (hashlib.sha256(content).hexdigest(), len(content)) == (
            read["sha256"],
            read["bytes"],
        )
        assert (read["sha256"] in texts) == (read["role"] in ("configuration", "policy"))
    assert texts[about["inputs"][0]["sha256"]] == Path("AUDIT.yaml").read_text()


def test_what_was_sealed_verifies(audit: Path) -> None:
    verified = verify(audit, [PUBLIC])
    assert set(states(verified.checks).values()) == {"same"}
    assert verified.record is not None


def test_any_folder_can_be_sealed(plain: Path) -> None:
    sealed(plain)
    verified = verify(plain, [OTHER.public_key().public_bytes_raw(), PUBLIC])
    assert states(verified.checks) == {
        SEAL: "same",
        "a.txt": "same",
        "deep/er/权重.bin": "same",
        f"deep/{SEAL}": "same",
    }
    assert verified.record is None
    assert payload(plain)["predicate"]["audit"] is None
    assert [p.name for p in plain.iterdir() if p.name.startswith(".")] == []
    assert (plain / SEAL).stat().st_mode & 0o777 == 0o644


def test_without_a_key_to_compare_with_the_signer_is_named_and_not_trusted(plain: Path) -> None:
    sealed(plain)
    (signature, *_) = verify(plain).checks
    assert signature.state == "not at hand"
    assert PUBLIC.hex() in signature.detail


def test_sealed_again_by_another_key(plain: Path) -> None:
    sealed(plain)
    (plain / "a.txt").write_text("better")
    sealed(plain, OTHER, force=True)
    checks = verify(plain, [PUBLIC]).checks
    assert states(checks) | {SEAL: "differs"} == states(checks)
    assert OTHER.public_key().public_bytes_raw().hex() in checks[0].detail


def test_a_key_that_was_rotated_follows_from_its_root(plain: Path, tmp_path: Path) -> None:
    first = Keys.create(tmp_path / "keys")
    Keys.rotate(tmp_path / "keys")
    now = Keys.rotate(tmp_path / "keys")
    seal(plain, now.public, lambda data: now.sign(data)[1], succession=now.succession)
    for known in (first.public, bytes.fromhex(now.succession[0].public_key), now.public):
        assert verify(plain, [known]).checks[0].state == "same"
    stranger = Keys.create(tmp_path / "others")
    assert verify(plain, [stranger.public]).checks[0].state == "differs"
    # a stranger who copies the links has no endorsement for his own key
    seal(
        plain, stranger.public, lambda data: stranger.sign(data)[1],
        succession=now.succession, force=True,
    )  # fmt: skip
    assert verify(plain, [first.public]).checks[0].state == "differs"


@pytest.mark.parametrize("name", ["audit.json", "index.html", "scores/precomputed.target.parquet"])
def test_an_edited_file(audit: Path, name: str) -> None:
    path = audit / name
    path.write_bytes(path.read_bytes() + b" ")
    differing = {c.subject for c in verify(audit, [PUBLIC]).checks if c.state == "differs"}
    assert name in differing
    assert differing <= {name, "audit.json"}


def test_an_audit_json_that_says_otherwise_than_the_seal(audit: Path) -> None:
    path = audit / "audit.json"
    path.write_text(path.read_text().replace('"seed": 0', '"seed": 1'))
    found = [c for c in verify(audit, [PUBLIC]).checks if c.state == "differs"]
    assert [(c.part, c.subject) for c in found] == [
        ("file", "audit.json"),
        ("record", "audit.json"),
    ]
    assert "seed" in found[1].detail
    path.write_text("{}")
    assert verify(audit, [PUBLIC]).record is None


def test_missing_added_and_renamed_files(plain: Path) -> None:
    sealed(plain)
    (plain / "a.txt").rename(plain / "b.txt")
    (plain / "deep" / "new").write_text("")
    checks = {c.subject: c for c in verify(plain, [PUBLIC]).checks}
    assert checks["a.txt"].detail == "is missing"
    assert "added" in checks["b.txt"].detail
    assert "added" in checks["deep/new"].detail
    assert {n for n, c in checks.items() if c.state != "same"} == {"a.txt", "b.txt", "deep/new"}


@pytest.mark.parametrize("target", ["file", "folder", "nothing", "fifo"])
def test_links_and_odd_files_are_never_followed(plain: Path, tmp_path: Path, target: str) -> None:
    sealed(plain)
    shutil.copytree(plain / "deep", tmp_path / "copy")
    shutil.copy(plain / "a.txt", tmp_path / "a.txt")
    name = "deep" if target == "folder" else "a.txt"
    if target == "folder":
        shutil.rmtree(plain / "deep")
        (plain / "deep").symlink_to(tmp_path / "copy")  # the same content, elsewhere
    else:
        (plain / "a.txt").unlink()
        if target == "fifo":
            os.mkfifo(plain / "a.txt")  # opening it would wait for ever
        else:
            (plain / "a.txt").symlink_to(tmp_path / ("a.txt" if target == "file" else "none"))
    checks = {c.subject: c for c in verify(plain, [PUBLIC]).checks}
    assert checks[name].state == "differs"
    assert "is a link" in checks[name].detail or "no plain file" in checks[name].detail
    if target == "folder":
        assert checks["deep/er/权重.bin"].detail == "is missing"
    with pytest.raises(InputError, match="plain files only"):
        sealed(plain, force=True)


def test_a_link_in_place_of_the_record_or_the_seal(audit: Path) -> None:
    shutil.move(audit / "audit.json", audit.parent / "elsewhere.json")
    (audit / "audit.json").symlink_to(audit.parent / "elsewhere.json")
    verified = verify(audit, [PUBLIC])
    assert verified.record is None
    assert states(verified.checks, "file")["audit.json"] == "differs"
    shutil.move(audit / SEAL, audit.parent / "elsewhere.seal")
    (audit / SEAL).symlink_to(audit.parent / "elsewhere.seal")
    with pytest.raises(InputError, match="no such file"):
        verify(audit, [PUBLIC])
    with pytest.raises(InputError, match="no plain file"):
        sealed(audit, force=True)


@pytest.mark.parametrize(
    "name",
    [
        "/etc/passwd", "../a.txt", "deep/../../a.txt", "deep/./a", "deep//a", "a/", "", ".", "..",
        "C:/a.txt", "c:a.txt", "..\\a.txt", "\\\\host\\share", "a.txt\0.html", "a\n.txt", "\ud800",
        "A.TXT", "a.txt\u0000", "ａ.txt", SEAL, SEAL.upper(), "x" * 5000,
    ],
)  # fmt: skip
def test_names_that_leave_the_folder_are_refused(plain: Path, name: str) -> None:
    said = statement(plain)
    said["subject"].append({"name": name, "digest": {"sha256": "0" * 64}})
    write(plain, said)
    with pytest.raises(InputError, match=r"payload: "):
        verify(plain, [PUBLIC])


@pytest.mark.parametrize(
    ("first", "second"),
    [("Readme", "README"), ("é", "e\u0301"), ("ß", "SS")],
)
def test_names_that_some_system_takes_for_one_are_not_sealed(
    tmp_path: Path, first: str, second: str
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / first).write_text("1")
    (folder / second).write_text("2")
    if len(list(folder.iterdir())) == 1:
        pytest.skip("this system takes them for one")
    with pytest.raises(InputError, match="rename it"):
        sealed(folder)


@pytest.mark.parametrize(
    "name", ["a\\b", "c:d", "tab\there", b"\xff".decode("utf-8", "surrogateescape")]
)
def test_names_that_other_systems_read_otherwise_are_not_sealed(plain: Path, name: str) -> None:
    (plain / name).write_text("")
    with pytest.raises(InputError, match="rename it"):
        sealed(plain)


def _twice(said: dict[str, Any]) -> bytes:
    return json.dumps(said).encode().replace(b'{"_type"', b'{"subject": [], "_type"', 1)


@pytest.mark.parametrize(
    "change",
    [
        lambda said: b"hello",
        lambda said: b"[]",
        lambda said: said | {"_type": "https://in-toto.io/Statement/v0.1"},
        lambda said: said | {"predicateType": "https://slsa.dev/provenance/v1"},
        lambda said: said | {"predicate": None},
        lambda said: said | {"subject": []},
        lambda said: said | {"subject": said["subject"] * 2},
        lambda said: said | {"subject": [{"name": "a.txt", "digest": {"sha512": "0" * 128}}]},
        lambda said: said | {"subject": [{"name": "a.txt", "digest": {"sha256": "0" * 63}}]},
        lambda said: said | {"subject": [{"name": "a.txt", "digest": {"sha256": "A" * 64}}]},
        lambda said: said | {"subject": [{"digest": {"sha256": "0" * 64}}]},
        lambda said: said | {"subject": ["a.txt"]},
        _twice,
    ],
)  # fmt: skip
def test_signed_nonsense_is_no_seal(plain: Path, change: Any) -> None:
    write(plain, change(statement(plain)))
    with pytest.raises(InputError, match=SEAL):
        verify(plain, [PUBLIC])


def test_another_payload_type_is_no_seal_and_cannot_be_put_over_a_signature(plain: Path) -> None:
    said = statement(plain)
    write(plain, said, kind="application/json")
    with pytest.raises(InputError, match="payloadType"):
        verify(plain, [PUBLIC])
    text = (plain / SEAL).read_text().replace("application/json", PAYLOAD_TYPE)
    (plain / SEAL).write_text(text)
    assert [c.state for c in verify(plain, [PUBLIC]).checks] == ["differs"]


def test_a_changed_payload_is_not_even_read(plain: Path) -> None:
    sealed(plain)
    envelope = dsse.read((plain / SEAL).read_bytes())
    forged = dsse.Envelope(PAYLOAD_TYPE, b"nonsense", envelope.signatures)
    (plain / SEAL).write_text(dsse.to_json(forged))
    for keys in ([], [PUBLIC]):
        assert [(c.part, c.state) for c in verify(plain, keys).checks] == [("signature", "differs")]


def test_several_signatures(plain: Path) -> None:
    sealed(plain)
    envelope = dsse.read((plain / SEAL).read_bytes())
    message = dsse.pae(PAYLOAD_TYPE, envelope.payload)
    second = OTHER.public_key().public_bytes_raw()
    both = (dsse.Signature(second.hex(), OTHER.sign(message)), *envelope.signatures)
    (plain / SEAL).write_text(dsse.to_json(dsse.Envelope(PAYLOAD_TYPE, envelope.payload, both)))
    assert verify(plain, [PUBLIC]).checks[0].state == "same"
    assert verify(plain, [second]).checks[0].state == "same"
    assert verify(plain, [bytes(32)]).checks[0].state == "differs"


def test_what_cannot_be_sealed(tmp_path: Path, plain: Path, audit: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(InputError, match="no file"):
        sealed(empty)
    with pytest.raises(InputError, match="no folder"):
        sealed(plain / "a.txt")
    (audit / "audit.json").write_text('{"schema_version": "1.0"}')
    with pytest.raises(InputError, match="no record"):
        sealed(audit, force=True)
    with pytest.raises(InputError, match="one pair"):
        seal(plain, PUBLIC, OTHER.sign)
    assert not (plain / SEAL).exists()
    with pytest.raises(InputError, match="no such file"):
        verify(plain)


def test_a_seal_is_replaced_only_when_asked(plain: Path) -> None:
    sealed(plain)
    before = (plain / SEAL).read_bytes()
    with pytest.raises(InputError, match="--force"):
        sealed(plain, OTHER)
    assert (plain / SEAL).read_bytes() == before
    sealed(plain, OTHER, force=True)
    assert (plain / SEAL).read_bytes() != before


def test_a_configuration_that_changed_since_is_sealed_by_its_digest(audit: Path) -> None:
    Path("AUDIT.yaml").write_text("version: 1\n")
    _, absent = seal(audit, PUBLIC, KEY.sign, force=True)
    assert absent == ("AUDIT.yaml",)
    read = payload(audit)["predicate"]
    assert read["audit"]["inputs"][0]["role"] == "configuration"
    assert read["audit"]["inputs"][0]["sha256"] not in read["texts"]


def test_a_file_that_cannot_be_read_is_not_taken_for_the_same(plain: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("nothing is closed to root")
    sealed(plain)
    (plain / "a.txt").chmod(0)
    assert states(verify(plain, [PUBLIC]).checks)["a.txt"] == "not at hand"
