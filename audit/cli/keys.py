"""``dpassay keys``: the folder of secrets; and private keys that other commands sign with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from audit.cli.errors import BadInput

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from audit.keys import Keys

_FOLDER = click.Path(path_type=Path)


@click.group()
def command() -> None:
    """Secrets to mark releases with, and a key to sign registries with."""


@command.command()
@click.argument("folder", type=_FOLDER)
def create(folder: Path) -> None:
    """Make keys in a new FOLDER that only you can read.

    Back it up: without it, marks can still be looked up, but no longer be told from forged ones.
    """
    from audit.keys import Keys
    from audit.yaml_file import InputError

    try:
        keys = Keys.create(folder)
    except InputError as error:
        raise BadInput(str(error)) from None
    _print(keys)


@command.command()
@click.argument("folder", type=_FOLDER)
def rotate(folder: Path) -> None:
    """Make a new signing key, endorsed by the old one, and a new marking secret.

    The root stays, and old marks are still found. Then run for each registry: dpassay registry
    rotate URL --keys FOLDER
    """
    from audit.keys import Keys
    from audit.yaml_file import InputError

    try:
        keys = Keys.rotate(folder)
    except InputError as error:
        raise BadInput(str(error)) from None
    _print(keys)


@command.command()
@click.argument("folder", type=_FOLDER)
@click.option("--json", "as_json", is_flag=True, help="Print it as public.json has it.")
def show(folder: Path, as_json: bool) -> None:
    """Print ids and public keys of FOLDER; nothing secret."""
    import json

    keys = folder_keys(folder)
    if as_json:
        click.echo(json.dumps(keys.public_part(), indent=1))
    else:
        _print(keys)


def folder_keys(folder: Path) -> Keys:
    """The keys in a folder, for a command.

    Raises:
        BadInput: if there are none, or others can read them.
    """
    from audit.keys import read
    from audit.yaml_file import InputError

    try:
        return read(folder)
    except InputError as error:
        raise BadInput(str(error)) from None


def _print(keys: Keys) -> None:
    click.echo(f"root public key   {keys.root.hex()}  (give this to those who verify)")
    click.echo(f"signing key       {keys.id}, rotated {len(keys.succession)} times")
    for id in keys.marking_ids:
        force = "  (in force)" if id == keys.marking[0] else ""
        click.echo(f"marking secret    {id}{force}")


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
