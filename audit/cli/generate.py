"""``dpassay generate``: draws records from a generator; the real ones are not needed for that."""

from __future__ import annotations

from pathlib import Path

import click

from audit.cli.errors import BadInput

_PATH = click.Path(path_type=Path)


@click.command()
@click.argument("generator", type=_PATH)
@click.option("--records", required=True, type=click.IntRange(1, 10**9), help="How many.")
@click.option("--out", required=True, type=_PATH, help="File to write: .csv or .parquet.")
@click.option("--seed", type=click.IntRange(min=0), help="Repeats a table.  [default: random]")
def command(generator: Path, records: int, out: Path, seed: int | None) -> None:
    """Draw records from GENERATOR, a folder that ``dpassay train tabular`` wrote.

    This spends no budget: any number of tables may be drawn.
    """
    if out.suffix not in (".csv", ".parquet"):
        raise BadInput(f"{out}: --out: unknown kind {out.suffix!r}; give .csv or .parquet")
    from attacks.files import whole_file
    from trainers.tabular.release import load

    try:
        made = load(generator)
    except ValueError as error:
        raise BadInput(str(error)) from None
    try:
        frame = made.sample(records, seed)
    except ValueError as error:
        raise BadInput(f"{generator}: {error}") from None
    except MemoryError:
        raise BadInput(f"--records: {records} do not fit in memory; draw fewer") from None
    try:
        with whole_file(out) as temporary:
            if out.suffix == ".csv":
                frame.to_csv(temporary, index=False)
            else:
                frame.to_parquet(temporary, index=False)
    except OSError as error:
        raise BadInput(
            f"{out}: cannot be written ({error.strerror}); choose another --out"
        ) from None
    click.echo(f"{out}: {len(frame)} records of {len(frame.columns)} columns")
