"""``dpassay seal``: writes the signed statement of what a folder holds into it."""

from __future__ import annotations

from pathlib import Path

import click

from audit.cli.errors import BadInput

_PATH = click.Path(path_type=Path)


@click.command()
@click.argument("folder", metavar="DIR", type=_PATH)
@click.option("--keys", "key_folder", type=_PATH, help="Key folder of `dpassay keys`.")
@click.option("--sign", type=_PATH, metavar="KEY.pem", help="Or an open Ed25519 private key.")
@click.option("--force", is_flag=True, help="Replace an earlier seal.")
def command(folder: Path, key_folder: Path | None, sign: Path | None, force: bool) -> None:
    """Seal every file in DIR: an audit, a trace, a model, or any other folder.

    Writes DIR/seal.dsse.json: an in-toto statement with each file's SHA-256 and, for an audit, its
    inputs, configuration, versions, seed and outcome, signed with an Ed25519 key.
    """
    from audit.seal import seal
    from audit.yaml_file import InputError

    if (key_folder is None) == (sign is None):
        raise BadInput("--keys: give it or --sign: something must sign, and only one")
    try:
        if key_folder is not None:
            from audit.keys import read

            keys = read(key_folder)
            public, links = keys.public, keys.succession
            path, absent = seal(
                folder, public, lambda data: keys.sign(data)[1], succession=links, force=force
            )
        else:
            from audit.cli.keys import signing_key

            assert sign is not None
            key = signing_key(sign)
            public = key.public_key().public_bytes_raw()
            path, absent = seal(folder, public, key.sign, force=force)
    except InputError as error:
        raise BadInput(str(error)) from None
    for name in absent:
        click.echo(
            f"note: {name} is not there as the audit read it: sealed by its digest, without its "
            "text; seal from the working folder of the audit",
            err=True,
        )
    click.echo(f"sealed: {path}")
    click.echo(f"public key: {public.hex()}")
