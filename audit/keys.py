"""The folder of secrets that marks are made with and registries are signed with.

``keys.json`` holds one Ed25519 private key, the one in force, and every marking secret, newest
last; ``public.json`` holds what anybody may see. A rotation makes a new signing key, lets the old
one endorse it, and forgets the old one: so what was signed long ago still follows from the first
public key, the root, and a copy of the folder signs nothing in the name of a key that was retired.
Marking secrets are kept, since marks of years ago are looked for with them.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from audit.yaml_file import InputError

PRIVATE, PUBLIC = "keys.json", "public.json"
SCHEMA = "dpassay.keys/1"
_UNFINISHED = "keys.json.new"  # also keeps a second rotation out
_ENDORSED = b"dpassay.key-endorsement/1\0"


@dataclass(frozen=True)
class Link:
    """A signing key that took over, and the endorsement by the key before it (hexadecimal)."""

    public_key: str
    endorsement: str


def key_id(material: bytes) -> str:
    """The public name, 16 hexadecimal digits, of a marking secret or an Ed25519 public key."""
    return hashlib.sha256(b"dpassay.key-id/1" + material).hexdigest()[:16]


def verified(public_key: bytes, signature: bytes, data: bytes) -> bool:
    """Whether this Ed25519 key signed these bytes. Nonsense is no signature, and no error."""
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, data)
    except (InvalidSignature, ValueError):
        return False
    return True


def endorsed(by: bytes, link: Link) -> bool:
    """Whether the key ``by`` named the link's key as its successor."""
    try:
        successor, signature = bytes.fromhex(link.public_key), bytes.fromhex(link.endorsement)
    except ValueError:
        return False
    return len(successor) == 32 and verified(by, signature, _ENDORSED + successor)


def succession(root: bytes, links: Sequence[Link]) -> tuple[bytes, ...]:
    """The public keys that follow from the root, the root first; it ends at the first bad link."""
    keys = [root]
    for link in links:
        if not endorsed(keys[-1], link):
            break
        keys.append(bytes.fromhex(link.public_key))
    return tuple(keys)


class Keys:
    """The keys of one folder. Shown or logged it gives ids, and it cannot be pickled.

    Attributes:
        folder: where they are kept.
        root: the first public key (32 bytes): the one that others should know.
        succession: the keys that took over since, oldest first.
        public: the public key in force (32 bytes).
    """

    __slots__ = ("__marking", "__signing", "folder", "public", "root", "succession")

    def __init__(
        self,
        folder: Path,
        root: bytes,
        succession: tuple[Link, ...],
        signing: Ed25519PrivateKey,
        marking: Mapping[str, bytes],
    ) -> None:
        self.folder = folder
        self.root = root
        self.succession = succession
        self.public = signing.public_key().public_bytes_raw()
        self.__signing = signing
        self.__marking = dict(marking)

    def __repr__(self) -> str:
        return (
            f"Keys(folder={str(self.folder)!r}, signing={self.id!r}, marking={self.marking[0]!r})"
        )

    def __reduce__(self) -> NoReturn:
        raise TypeError("keys are not pickled: give the folder, and read it there")

    @classmethod
    def create(cls, folder: Path) -> Keys:
        """New keys in a new or empty folder, for its owner's eyes only.

        Raises:
            InputError: if the folder holds anything, or cannot be written.
        """
        with _plainly(folder, "written"):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if any(folder.iterdir()):
                raise InputError(f"{folder}: is not empty; give keys a folder of their own")
            folder.chmod(0o700)
        signing, secret = Ed25519PrivateKey.generate(), os.urandom(32)
        root = signing.public_key().public_bytes_raw()
        keys = cls(folder, root, (), signing, {key_id(secret): secret})
        with _writing(folder) as file:
            if (folder / PRIVATE).exists():  # made by another program meanwhile
                raise InputError(f"{folder}: is not empty; give keys a folder of their own")
            keys.__write(file)
        return keys

    @classmethod
    def rotate(cls, folder: Path) -> Keys:
        """A new signing key, endorsed by the old one, which is forgotten; a new marking secret.

        Registries learn of it with their next entry (``Registry.hand_over`` does it at once).

        Raises:
            InputError: as ``read``, or if the folder cannot be written.
        """
        with _writing(folder) as file:
            old = read(folder)
            signing, secret = Ed25519PrivateKey.generate(), os.urandom(32)
            public = signing.public_key().public_bytes_raw()
            link = Link(public.hex(), old.__signing.sign(_ENDORSED + public).hex())
            marking = {**old.__marking, key_id(secret): secret}
            keys = cls(folder, old.root, (*old.succession, link), signing, marking)
            keys.__write(file)
        return keys

    @property
    def id(self) -> str:
        """Id of the signing key in force."""
        return key_id(self.public)

    @property
    def marking(self) -> tuple[str, bytes]:
        """Id and bytes of the marking secret in force."""
        return list(self.__marking.items())[-1]

    @property
    def marking_ids(self) -> tuple[str, ...]:
        """Ids of all marking secrets, oldest first."""
        return tuple(self.__marking)

    def secret(self, id: str) -> bytes:
        """The marking secret of this id, also one from before a rotation.

        Raises:
            InputError: if this folder has none of it.
        """
        if id not in self.__marking:
            raise InputError(f"{self.folder}: has no marking secret {id}; give the folder that has")
        return self.__marking[id]

    def sign(self, data: bytes) -> tuple[str, bytes]:
        """Key id and Ed25519 signature (64 bytes) by the key in force.

        Begin ``data`` with what it is, so that no signature can serve for something else.
        """
        return self.id, self.__signing.sign(data)

    def public_part(self) -> dict[str, Any]:
        """What anybody may see, as ``public.json`` has it."""
        return {
            "schema": SCHEMA,
            "root": self.root.hex(),
            "succession": [vars(link) for link in self.succession],
            "public_key": self.public.hex(),
            "key_id": self.id,
            "marking": list(self.__marking),
        }

    def __write(self, file: int) -> None:
        secrets = {
            **self.public_part(),
            "private_key": self.__signing.private_bytes_raw().hex(),
            "marking": [{"id": id, "secret": s.hex()} for id, s in self.__marking.items()],
            "written": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        _put(file, secrets)
        os.replace(self.folder / _UNFINISHED, self.folder / PRIVATE)
        shown = self.folder / f"{PUBLIC}.new"
        shown.unlink(missing_ok=True)
        other = os.open(shown, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            _put(other, self.public_part())
        finally:
            os.close(other)
        os.replace(shown, self.folder / PUBLIC)
        _sync_folder(self.folder)


def read(folder: Path) -> Keys:
    """The keys in a folder that ``Keys.create`` made.

    Raises:
        InputError: if there are none, if others than the owner can read them or write where they
            lie, or if the file is damaged. No message holds anything of a secret.
    """
    path = folder / PRIVATE
    try:
        with path.open("rb") as file:
            _refuse_shared(folder.stat(), folder, 0o022, "700")
            _refuse_shared(os.fstat(file.fileno()), path, 0o077, "600")
            content = file.read()
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; make keys: dpassay keys create {folder}") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    try:
        data = json.loads(content)
        if data["schema"] != SCHEMA:
            raise InputError(f"{path}: schema: this program reads {SCHEMA!r} only")
        links = tuple(Link(**link) for link in data["succession"])
        signing = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(data["private_key"]))
        marking = {m["id"]: bytes.fromhex(m["secret"]) for m in data["marking"]}
        keys = Keys(folder, bytes.fromhex(data["root"]), links, signing, marking)
        last = succession(keys.root, links)
        whole = bool(marking) and len(last) == len(links) + 1 and last[-1] == keys.public
        whole &= all(len(s) == 32 and key_id(s) == id for id, s in marking.items())
    except InputError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        whole = False  # what the parser complains of may quote a secret: it is not passed on
    if not whole:
        raise InputError(f"{path}: is damaged; restore it from your backup")
    return keys


def _refuse_shared(status: os.stat_result, path: Path, bits: int, mode: str) -> None:
    if os.name == "posix" and stat.S_IMODE(status.st_mode) & bits:
        what = "read" if bits & 0o044 else "write in"
        raise InputError(f"{path}: others can {what} it; run: chmod {mode} {path}")


@contextmanager
def _writing(folder: Path) -> Iterator[int]:
    """The descriptor of the new file, closed to others from its first byte."""
    path = folder / _UNFINISHED
    with _plainly(folder, "written"):
        try:
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            raise InputError(
                f"{path}: another program changes these keys, or was killed as it did; if none "
                f"runs: rm {path}"
            ) from None
        try:
            yield file
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        finally:
            os.close(file)


@contextmanager
def _plainly(folder: Path, what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(f"{folder}: cannot be {what}: {error.strerror}") from None


def _put(file: int, data: Mapping[str, Any]) -> None:
    left = (json.dumps(data, indent=1) + "\n").encode()
    while left:
        left = left[os.write(file, left) :]
    os.fsync(file)


def _sync_folder(folder: Path) -> None:
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
