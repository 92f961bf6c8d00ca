"""``dpassay postprocess``: drop, generalise, filter synthetic records, and say what was read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from audit.cli.errors import BadInput

if TYPE_CHECKING:
    import pandas as pd

    from trainers.preparation.postprocess import Step

_PATH = click.Path(path_type=Path)


@click.command()
@click.argument("synthetic", type=_PATH)
@click.option("--out", required=True, type=_PATH, help="File to write, .csv or .parquet.")
@click.option(
    "--drop-outliers",
    "reach",
    type=float,
    metavar="REACH",
    help="Drop records beyond the quartiles by REACH times their distance; 3 is usual.",
)
@click.option(
    "--generalise-rare",
    "least",
    type=int,
    metavar="K",
    help="Categories that fewer than K synthetic records have become 'other'.",
)
@click.option(
    "--step",
    "coarse",
    multiple=True,
    metavar="COLUMN=STEP",
    help="With --generalise-rare: round the column's numbers down to multiples of STEP.",
)
@click.option(
    "--remove-near",
    "train",
    type=_PATH,
    metavar="TRAIN",
    help="Remove records near one of TRAIN. Reads raw data: ε = ∞ from there on.",
)
@click.option(
    "--distance",
    type=float,
    default=0.0,
    show_default=True,
    help="With --remove-near: Gower's distance, 0 (copies) to 1.",
)
@click.option("--after", default="generate", show_default=True, help="Lineage stage of SYNTHETIC.")
@click.option("--population", default="people", show_default=True, help="Lineage name for TRAIN's.")
def command(
    synthetic: Path,
    out: Path,
    reach: float | None,
    least: int | None,
    coarse: tuple[str, ...],
    train: Path | None,
    distance: float,
    after: str,
    population: str,
) -> None:
    """Post-process SYNTHETIC, in the order of the options below, whatever their order.

    Writes OUT, OUT.postprocess.json (what was done, with stages for a LINEAGE.yaml) and, with
    --remove-near, OUT.ledger.jsonl.
    """
    from attacks.synthetic.tables import code
    from trainers.preparation import postprocess
    from trainers.preparation.access_record import check_free, describe, save

    if coarse and least is None:
        raise BadInput("--step: needs --generalise-rare")
    if reach is None and least is None and train is None:
        raise BadInput("nothing to do: give --drop-outliers, --generalise-rare or --remove-near")
    steps: list[Step] = []
    try:
        check_free(out)
        table, as_text = _exact(synthetic)
        code({"synthetic": table})  # refuses what no attack would read
        if reach is not None:
            table, done = postprocess.drop_outliers(table, reach)
            steps.append(done)
        if least is not None:
            table, done = postprocess.generalise_rare(table, least, _steps(coarse))
            steps.append(done)
        if train is not None:
            raw, _ = _exact(train, as_text)
            table, done = postprocess.remove_near(
                table, raw, distance, population=population, name=train.name
            )
            steps.append(done)
        save(out, table, steps, after)
    except ValueError as error:
        said = str(error)
        if said.startswith(("synthetic: ", "steps: ")):
            said = f"{synthetic}: {said.removeprefix('synthetic: ')}"
        raise BadInput(said) from None
    except OSError as error:
        raise BadInput(f"{out}: cannot be written ({error.strerror}); choose another") from None
    for done in steps:
        what = f"{done.removed} of {done.records} records removed, {done.changed} changed"
        reads = f"reads {done.raw.name}, without DP" if done.raw else "reads SYNTHETIC alone: free"
        click.echo(f"{done.stage}: {what}; {reads}")
    click.echo(f"{out}: {len(table)} records; {out.name}.postprocess.json has the lineage stages")
    for note in describe(steps, after)["notes"]:
        click.echo(f"warning: {note}", err=True)


def _exact(path: Path, as_text: Sequence[str] = ()) -> tuple[pd.DataFrame, list[str]]:
    """The table, and its columns that stay text since their numbers would be written otherwise.

    Codes with leading zeros and whole numbers too large for a float; ``as_text`` names more.
    """
    import pandas as pd

    from attacks.synthetic.tables import read_table

    table = _whole(read_table(path))
    if path.suffix != ".csv":
        return table, []
    numeric = [str(name) for name in table.select_dtypes("number")]
    texts = pd.read_csv(path, encoding="utf-8-sig", index_col=False, usecols=numeric, dtype=str)
    odd = [
        name
        for name in numeric
        if name in as_text
        or texts[name].str.match(r"[+-]?0\d", na=False).any()
        or (
            table[name].dtype.kind == "f"
            and texts[name].str.match(r"[+-]?\d{16,}$", na=False).any()
        )
    ]
    table[odd] = texts[odd]
    return table, odd


def _whole(table: pd.DataFrame) -> pd.DataFrame:
    """Columns of whole numbers with gaps, which are read as 35.0, as integers again."""
    kept = table.copy()
    for name, column in table.select_dtypes("float").items():
        present = column.dropna()
        if len(present) and ((present % 1 == 0) & (present.abs() < 2**53)).all():
            kept[name] = column.astype("Int64")
    return kept


def _steps(given: tuple[str, ...]) -> dict[str, float]:
    steps: dict[str, float] = {}
    for text in given:
        name, _, value = text.rpartition("=")
        try:
            steps[name] = float(value)
        except ValueError:
            name = ""
        if not name:
            raise BadInput(f"--step: must be COLUMN=STEP with a number, got {text!r}")
    return steps
