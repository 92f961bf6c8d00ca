"""The chain of a registry: how an entry is hashed and signed, and which entries are sound.

Hash chains after Haber and Stornetta (1991), signatures Ed25519 (RFC 8032). An entry counts only
if its own hash holds and the key in force signed it; the rest is kept as a problem. What follows
an entry that was tampered with still counts by its own signature.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from audit.keys import Keys, Link, key_id, succession, verified
from audit.registry.entries import Entry, Problem, ProblemKind
from audit.registry.statements import Statements, misshapen
from audit.yaml_file import InputError

SCHEMA = "dpassay.registry/1"
BEGINNING = "0" * 64
_HASHED = b"dpassay.registry/1\0"
_SIGNED = b"dpassay.registry-entry/1\0"
_ROOT_FIELDS = {"schema": "str", "id": "str", "root": "str", "succession": "list", "created": "str"}
_KEY_FIELDS = {"succession": "list"}


def canonical(body: Mapping[str, Any]) -> str:
    """JSON with sorted keys, no spaces and ASCII only: one text for one content.

    Raises:
        InputError: if it holds NaN, infinity, or what JSON cannot.
    """
    try:
        return json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (ValueError, TypeError, RecursionError) as error:
        raise InputError(f"cannot be written into a registry: {error}") from None


def digest(previous: str, position: int, kind: str, body: str) -> str:
    """SHA-256 of an entry, in hexadecimal digits.

    It covers the hash before (64 ASCII digits), the position (8 bytes, big-endian), the length of
    the kind (1 byte), the kind, and the body (UTF-8).
    """
    name = kind.encode()
    data = previous.encode() + position.to_bytes(8, "big") + bytes([len(name)]) + name
    return hashlib.sha256(_HASHED + data + body.encode()).hexdigest()


def signed_by(entry: Entry, public_key: bytes) -> bool:
    """Whether this key signed what the entry says: its hash is recomputed. Needs no secret."""
    return _own_hash(entry) and _signature(entry, public_key)


class Chain:
    """What has been read of a chain so far, entry by entry.

    Attributes:
        head: hash of the last entry.
        last: its position.
        root: the public key that the first entry names; empty if there is none.
        keys: key id to public key, of all that follow from the root; the last is in force.
        said: what the sound entries state.
        problems: what does not hold, in the order of the entries.
    """

    def __init__(self) -> None:
        self.entries: dict[int, Entry] = {}
        self.head = BEGINNING
        self.last = 0
        self.root = b""
        self.keys: dict[str, bytes] = {}
        self.said = Statements()
        self.problems: list[Problem] = []

    @property
    def in_force(self) -> str:
        """Id of the key that must sign the next entry."""
        return next(reversed(self.keys), "")

    def begun(self, id: str, created: str, keys: Keys) -> Entry:
        """The first entry of a new chain."""
        body = {
            "schema": SCHEMA,
            "id": id,
            "root": keys.root.hex(),
            "succession": [vars(link) for link in keys.succession],
            "created": created,
        }
        return self._signed("registry", canonical(body), keys)

    def handed_over(self, keys: Keys) -> Entry | None:
        """The entry that puts the folder's key in force; None if it is.

        Raises:
            InputError: if these keys do not follow from the one in force.
        """
        if keys.id == self.in_force:
            return None
        ids = [key_id(key) for key in succession(keys.root, keys.succession)]
        if self.in_force not in ids:
            raise InputError(
                f"{keys.folder}: its keys do not follow from the registry's, {self.in_force}; give "
                "the folder that the registry was made with"
            )
        links = keys.succession[ids.index(self.in_force) :]
        return self._signed("key", canonical({"succession": [vars(link) for link in links]}), keys)

    def stated(self, kind: str, body: Mapping[str, Any], keys: Keys) -> Entry:
        """The next entry, signed by the key in force. It is not taken in yet.

        Raises:
            InputError: if this cannot be stated now.
        """
        text = canonical(body)
        if refusal := self.said.refusal(kind, json.loads(text)):
            raise InputError(refusal)
        return self._signed(kind, text, keys)

    def _signed(self, kind: str, text: str, keys: Keys) -> Entry:
        position = self.last + 1
        hash = digest(self.head, position, kind, text)
        id, signature = keys.sign(_SIGNED + bytes.fromhex(hash))
        return Entry(position, kind, text, self.head, hash, id, signature.hex())

    def take(self, entries: Iterable[Entry]) -> None:
        """Follow further entries, in the order of positions.

        What is sound is taken in, anything else becomes a problem.
        """
        for entry in entries:
            problem = self._problem(entry)
            self.entries[entry.position] = entry
            if entry.position > self.last:
                self.last, self.head = entry.position, entry.hash
            if problem is not None:
                self.problems.append(problem)

    def verify(self, public_key: bytes | None, head: str | None) -> tuple[Problem, ...]:
        """All problems of the chain, with those of the root, the pinned head, and open batches."""
        found = list(self.problems)
        if public_key is not None and public_key != self.root:
            rests = f"rests on the key {self.root.hex()}" if self.root else "has no root"
            found.insert(0, Problem("root", 1, f"the registry {rests}, not on the one expected"))
        if head is not None and all(head.lower() != e.hash for e in self.entries.values()):
            found.append(
                Problem(
                    "head",
                    self.last,
                    f"no entry has the pinned hash {head[:16]}…: entries after {self.last} were "
                    "dropped, or the chain was written anew",
                )
            )
        for id, state in self.said.states.items():
            if state == "open":
                counted, records = self.said.counted[id], self.said.batches[id].records
                detail = f"batch {id}: {counted} of {records} records are there"
                found.append(Problem("unfinished", self.said.positions["batch", id], detail))
        return tuple(found)

    def _problem(self, entry: Entry) -> Problem | None:
        """What is wrong with an entry; if nothing is, what it states is taken in."""
        expected = self.last + 1
        if gap := max(0, entry.position - expected):
            to = f" to {entry.position - 1}" if gap > 1 else ""
            self.problems.append(Problem("missing", expected, f"no entry at {expected}{to}"))
        if not _own_hash(entry):
            return _about(entry, "hash", "is not what its hash says: it was edited or moved")
        if entry.position < expected:
            return _about(entry, "chain", "stands before the first position")
        if not gap and entry.previous != self.head:
            self.problems.append(_about(entry, "chain", f"does not follow entry {self.last}"))
        body = _body(entry.body)
        if entry.position == 1:
            begins = entry.kind == "registry" and self._begin(entry, body)
            return None if begins else _about(entry, "root", "is no signed beginning of a registry")
        if not self.keys:
            known = any(p.kind == "root" for p in self.problems)  # said once, not for every entry
            detail = "there is no sound first entry to check signatures by"
            return None if known else Problem("root", 1, detail)
        if entry.kind == "key":
            follows = self._hand_over(entry, body)
            return None if follows else _about(entry, "signature", "is no key that may sign here")
        if entry.key_id != self.in_force:
            was = "rotated out" if entry.key_id in self.keys else "never in force here"
            return _about(entry, "signature", f"names the key {entry.key_id}, which was {was}")
        if not _signature(entry, self.keys[self.in_force]):
            return _about(entry, "signature", "is not signed by the key in force")
        if refusal := self.said.refusal(entry.kind, body):
            return Problem("content", entry.position, refusal)
        self.said.take(entry.position, entry.kind, body)
        return None

    def _begin(self, entry: Entry, body: dict[str, Any]) -> bool:
        if misshapen(_ROOT_FIELDS, body) or body["schema"] != SCHEMA:
            return False
        root = _hex(body["root"])
        keys = _followed(root, body["succession"])
        if len(root) != 32 or not keys or not _by(entry, keys[-1]):
            return False
        self.root, self.keys = root, {key_id(key): key for key in keys}
        return True

    def _hand_over(self, entry: Entry, body: dict[str, Any]) -> bool:
        if misshapen(_KEY_FIELDS, body):
            return False
        keys = _followed(self.keys[self.in_force], body["succession"])
        if len(keys) < 2 or not _by(entry, keys[-1]):
            return False
        new = {key_id(key): key for key in keys[1:]}
        if new.keys() & self.keys.keys():
            return False  # what was rotated out does not come back
        self.keys.update(new)
        return True


def _followed(first: bytes, links: list[Any]) -> tuple[bytes, ...]:
    """The keys that links make follow from the first; none if a link does not hold."""
    try:
        keys = succession(first, [Link(**link) for link in links])
    except (TypeError, ValueError):
        return ()
    return keys if len(keys) == len(links) + 1 else ()


def _by(entry: Entry, public_key: bytes) -> bool:
    return entry.key_id == key_id(public_key) and _signature(entry, public_key)


def _hex(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        return b""


def _body(text: str) -> dict[str, Any]:
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return body if isinstance(body, dict) else {}


def _own_hash(entry: Entry) -> bool:
    try:
        return entry.hash == digest(entry.previous, entry.position, entry.kind, entry.body)
    except (ValueError, OverflowError, AttributeError):  # a lone surrogate, a number for a text
        return False


def _signature(entry: Entry, public_key: bytes) -> bool:
    return verified(public_key, _hex(entry.signature), _SIGNED + _hex(entry.hash))


def _about(entry: Entry, kind: ProblemKind, detail: str) -> Problem:
    """A problem that names the entry by what it claims to be about."""
    body = _body(entry.body) if isinstance(entry.body, str) else {}
    about = body.get("id") or body.get("batch") or body.get("code") or ""
    named = " ".join(f"{entry.kind} {str(about)[:40]}".split())
    return Problem(kind, entry.position, f"{named} {detail}")
