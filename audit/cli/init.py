"""``dpassay init``: writes a commented AUDIT.yaml to start from."""

from __future__ import annotations

from pathlib import Path

import click
import jinja2

from audit.cli.errors import BadInput

KINDS = ("sklearn", "recipe", "torch", "trained", "transformers", "scores", "claims")


def template(kind: str, file: str) -> str:
    """The text of a commented AUDIT.yaml for a kind of target."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,  # it makes YAML, from our own words alone
    )
    return environment.get_template("AUDIT.yaml.jinja").render(
        kind=kind,
        file=file,
        title=f"Audit of a {kind} target" if kind != "claims" else "Audit of a privacy claim",
        attacks="loss_threshold" if kind == "transformers" else "loss_threshold, shadow",
    )


@click.command()
@click.argument("kind", type=click.Choice(KINDS))
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), default="AUDIT.yaml")
@click.option("--force", is_flag=True, help="Overwrite the file if it exists.")
def command(kind: str, out: Path, force: bool) -> None:
    """Write a commented AUDIT.yaml for a KIND of target.

    KIND: sklearn (a skops file), recipe (trained here), torch (safetensors and a factory), trained
    (a folder of `dpassay train`), transformers (a folder), scores (a file of per-record scores),
    claims (no model: a ledger and what is claimed about it).
    """
    if out.exists() and not force:
        raise BadInput(f"{out}: exists; choose another --out, or --force to overwrite it")
    try:
        out.write_text(template(kind, out.name), encoding="utf-8")
    except OSError as error:
        raise BadInput(
            f"{out}: cannot be written ({error.strerror}); choose another --out"
        ) from None
    click.echo(f"wrote {out}; edit it, then: dpassay audit {out} --out report")
