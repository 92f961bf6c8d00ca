"""Private keys that commands sign with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from audit.cli.errors import BadInput

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


def signing_key(path: Path) -> Ed25519PrivateKey:
    """The Ed25519 private key in a PEM file without a password.

    Raises:
        BadInput: if there is none.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(path.read_bytes(), password=None)
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, TypeError):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise BadInput(
            f"{path}: --sign: is no open Ed25519 key; make one: openssl genpkey -algorithm ed25519"
        )
    return key
