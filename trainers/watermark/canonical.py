"""What a mark is bound to, and the keys it is made with."""

from __future__ import annotations

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF


def subkey(secret: bytes, purpose: str, batch: str) -> bytes:
    """The 32-byte key of one batch and one purpose, derived from a marking secret.

    HKDF with SHA-256 (Krawczyk and Eronen 2010, RFC 5869): who learns one learns no other.
    """
    info = f"dpassay/{purpose}/1\0{batch}".encode()
    return HKDF(SHA256(), 32, None, info).derive(secret)
