"""DSSE envelopes: bytes, what kind of bytes they are, and who signed both.

Source: Dead Simple Signing Envelope 1.0 (secure-systems-lab, 2021), protocol.md and envelope.md.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MOST_SIGNATURES = 100


@dataclass(frozen=True)
class Signature:
    """One signature. ``key_id`` is a hint that nobody signed: it never decides anything."""

    key_id: str
    value: bytes


@dataclass(frozen=True)
class Envelope:
    """A payload with its type and the signatures over both."""

    payload_type: str
    payload: bytes
    signatures: tuple[Signature, ...]

    def signature_by(self, public_key: bytes) -> Signature | None:
        """The first signature that the Ed25519 key, 32 raw bytes, made; None without one."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        message = pae(self.payload_type, self.payload)
        for signature in self.signatures:
            try:
                Ed25519PublicKey.from_public_bytes(public_key).verify(signature.value, message)
            except (InvalidSignature, ValueError):
                continue
            return signature
        return None


def pae(payload_type: str, body: bytes) -> bytes:
    """What is signed: type and body, each behind its length, so that nothing runs together."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(body), body)


def to_json(envelope: Envelope) -> str:
    """The envelope as JSON text, in standard base64."""
    signatures = [
        {"keyid": s.key_id, "sig": base64.b64encode(s.value).decode()} for s in envelope.signatures
    ]
    whole = {
        "payload": base64.b64encode(envelope.payload).decode(),
        "payloadType": envelope.payload_type,
        "signatures": signatures,
    }
    return json.dumps(whole, indent=1) + "\n"


def read(text: bytes) -> Envelope:
    """The envelope in JSON text; base64 may be of either alphabet, and unknown fields are ignored.

    Raises:
        ValueError: if it is no envelope, or has no signature or more than a hundred.
    """
    data = strict_json(text)
    if not isinstance(data, dict):
        raise ValueError("is no JSON object")
    signatures = data.get("signatures")
    if not isinstance(signatures, list) or not 1 <= len(signatures) <= MOST_SIGNATURES:
        raise ValueError(f"signatures: must be a list of 1 to {MOST_SIGNATURES}")
    return Envelope(
        _text(data, "payloadType"),
        _bytes(data, "payload"),
        tuple(_signature(entry) for entry in signatures),
    )


def strict_json(text: bytes) -> Any:
    """JSON in UTF-8 that every reader understands alike: no key twice, no NaN, no infinity.

    Raises:
        ValueError: if it is not.
    """
    try:
        return json.loads(
            text.decode("utf-8"), object_pairs_hook=_once, parse_constant=_refuse_constant
        )
    except RecursionError:
        raise ValueError("is nested too deeply") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"has the key {twice!r} twice")
    return found


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"holds {name}, which is no JSON")


def _signature(entry: Any) -> Signature:
    if not isinstance(entry, dict):
        raise ValueError("signatures: must hold JSON objects")
    key_id = entry.get("keyid", "")
    if not isinstance(key_id, str):
        raise ValueError("keyid: must be text")
    return Signature(key_id, _bytes(entry, "sig"))


def _text(data: Mapping[str, Any], field: str) -> str:
    value = data.get(field)
    if not isinstance(value, str) or not value.isascii():
        raise ValueError(f"{field}: must be ASCII text")
    return value


def _bytes(data: Mapping[str, Any], field: str) -> bytes:
    """Base64 of either alphabet, but not of both, padded, and spelt in the one way there is."""
    text = _text(data, field)
    plain, in_urls = base64.b64encode, base64.urlsafe_b64encode
    try:
        value = base64.b64decode(text.replace("-", "+").replace("_", "/"), validate=True)
    except (binascii.Error, ValueError):
        value = b""
    if text.encode() not in (plain(value), in_urls(value)):
        raise ValueError(f"{field}: is no base64")
    return value
