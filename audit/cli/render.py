"""``dpassay render``: shows an archived audit.json again, without running anything."""

from __future__ import annotations

from pathlib import Path

import click

from audit.cli.errors import BadInput

FORMATS = {"html": "index.html", "markdown": "audit.md"}


@click.command()
@click.argument("record", type=click.Path(path_type=Path))
@click.option("--format", "kind", type=click.Choice(tuple(FORMATS)), default="html")
@click.option("--locale", type=click.Choice(["en", "zh"]), default="en")
@click.option(
    "--out", type=click.Path(path_type=Path), help="File to write; standard output if none."
)
def command(record: Path, kind: str, locale: str, out: Path | None) -> None:
    """Render RECORD, the audit.json of an earlier audit."""
    import reports.html
    import reports.markdown
    from reports.record import from_json

    try:
        loaded = from_json(record.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BadInput(f"{record}: no such file") from None
    except (OSError, ValueError) as error:
        raise BadInput(f"{record}: {error}") from None
    renderer = {"html": reports.html.render, "markdown": reports.markdown.render}[kind]
    text = renderer(loaded, locale)
    if out is None:
        click.echo(text)
        return
    from attacks.files import whole_file

    try:
        with whole_file(out) as temporary:
            temporary.write_text(text, encoding="utf-8")
    except OSError as error:
        raise BadInput(
            f"{out}: cannot be written ({error.strerror}); choose another --out"
        ) from None
