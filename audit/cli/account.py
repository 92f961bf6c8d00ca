"""``dpassay account``: what a mechanism or a ledger costs, by every accountant; and calibration."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click
from click.core import ParameterSource

from audit.cli.errors import BadInput

if TYPE_CHECKING:
    from audit.accounting.events import MechanismEvent, Relation, Sampling
    from audit.accounting.guarantee import PrivacyGuarantee, Unit

FALSE_ALARMS = (0.01, 0.001)
SOLVABLE = ("noise_multiplier", "sample_rate", "steps", "delta")


class Whole(click.ParamType):  # type: ignore[type-arg]  # generic in new releases only
    """A whole number, also as 1e9."""

    name = "integer"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number as an int, or a usage error."""
        try:
            number = int(value) if str(value).lstrip("+-").isdigit() else float(value)
        except ValueError:
            number = math.nan
        if number != number or math.isinf(number) or number != int(number):
            self.fail(f"{value!r} is not a whole number.", param, ctx)
        return int(number)


@dataclass(frozen=True)
class Question:
    """What is accounted, where, and how it reads to a person."""

    events: tuple[MechanismEvent, ...]
    delta: float
    relation: Relation
    unit: Unit
    group_size: int
    records: int | None
    what: tuple[str, ...]
    notes: tuple[str, ...] = ()


@click.command()
@click.option("--noise-multiplier", type=float, help="σ: the noise over the clipping norm.")
@click.option("--sample-rate", type=float, help="q: the share of records in a batch.")
@click.option("--steps", type=Whole(), help="How many noisy steps.")
@click.option("--batch-size", type=float, help="With --records, in place of --sample-rate.")
@click.option("--records", type=Whole(), help="How many records there are.")
@click.option("--epochs", type=float, help="In place of --steps.")
@click.option("--delta", type=float, help="δ at which ε is asked for.")
@click.option(
    "--sampling",
    type=click.Choice(["poisson", "without_replacement", "shuffled", "full_batch"]),
    default="poisson",
    show_default=True,
    help="How batches are drawn.",
)
@click.option(
    "--relation",
    type=click.Choice(["add-remove", "replace-one"]),
    default="add-remove",
    show_default=True,
    help="The neighbouring relation.",
)
@click.option(
    "--group-size",
    type=click.IntRange(min=1),
    help="Records of one user.  [default: 1, or the ledger's]",
)
@click.option("--ledger", type=click.Path(path_type=Path), help="Account for what a ledger holds.")
@click.option("--calibrate", metavar="epsilon=X", help="Find the one number that is left out.")
@click.option(
    "--accountant",
    type=click.Choice(["RDP", "tightest"]),
    default="tightest",
    show_default=True,
    help="Which accountant a calibration must satisfy.",
)
@click.option("--json", "as_json", is_flag=True, help="Everything, with the curves, as JSON.")
@click.pass_context
def command(
    context: click.Context,
    noise_multiplier: float | None,
    sample_rate: float | None,
    steps: int | None,
    batch_size: float | None,
    records: int | None,
    epochs: float | None,
    delta: float | None,
    sampling: Sampling,
    relation: Relation,
    group_size: int | None,
    ledger: Path | None,
    calibrate: str | None,
    accountant: Literal["RDP", "tightest"],
    as_json: bool,
) -> None:
    """Recompute ε at δ of a mechanism or of a training ledger, by every accountant.

    \b
    dpassay account --noise-multiplier 1.41 --sample-rate 0.128 --steps 100 --delta 1e-5
    dpassay account --ledger run/ledger.jsonl
    dpassay account --calibrate epsilon=1 --sample-rate 0.01 --steps 1000 --delta 1e-5
    """
    from audit.accounting.guarantee import guarantees

    said = {
        "noise_multiplier": noise_multiplier,
        "sample_rate": _sample_rate(sample_rate, batch_size, records, sampling),
        "steps": None,
        "delta": delta,
    }
    rate = said["sample_rate"]
    said["steps"] = _steps(steps, epochs, rate, sampling)
    solved = ""
    try:
        if ledger is not None:
            chosen = context.get_parameter_source("sampling") is ParameterSource.COMMANDLINE
            if chosen or any(said[name] is not None for name in SOLVABLE[:3]):
                raise BadInput("--ledger: says itself what ran; leave out the mechanism's options")
            if calibrate is not None:
                raise BadInput("--calibrate: needs a mechanism, not a ledger")
            question = _of_ledger(ledger, delta, relation, group_size, records)
        else:
            if calibrate is not None:
                if group_size not in (None, 1):
                    raise BadInput("--calibrate: works for one record; leave out --group-size")
                solved = _calibrate(calibrate, said, sampling, relation, accountant)
            question = _of_mechanism(said, sampling, relation, group_size or 1, records)
        found = guarantees(
            question.events,
            question.delta,
            relation=relation,
            unit=question.unit,
            group_size=question.group_size,
        )
    except ValueError as error:
        raise BadInput(_in_words_of_options(str(error), sampling, relation)) from None
    if as_json:
        click.echo(
            json.dumps(
                _as_json(question, found, said if solved else None), indent=1, allow_nan=False
            )
        )
    else:
        _print(question, found, solved)


def _sample_rate(
    rate: float | None, batch_size: float | None, records: int | None, sampling: str
) -> float | None:
    if records is not None and records < 1:
        raise BadInput(f"--records: must be at least 1, got {records}")
    if batch_size is not None:
        if rate is not None:
            raise BadInput("--batch-size: says the same as --sample-rate; leave one out")
        if records is None:
            raise BadInput("--batch-size: needs --records, for the sample rate is their ratio")
        return batch_size / records
    if rate is None and sampling == "full_batch":
        return 1.0
    return rate


def _steps(
    steps: int | None, epochs: float | None, rate: float | None, sampling: str
) -> int | None:
    if epochs is None:
        return steps
    if steps is not None:
        raise BadInput("--epochs: says the same as --steps; leave one out")
    if rate is None or not (0 < rate <= 1 and 0 <= epochs < math.inf):
        raise BadInput("--epochs: needs a sample rate in (0, 1], for steps are epochs over it")
    if sampling == "shuffled":  # what an epoch has for sure; a short last batch is one more
        return math.ceil(epochs) * max(1, math.floor(1 / rate + 1e-9))
    return math.ceil(epochs / rate - 1e-9)


def _in_words_of_options(message: str, sampling: str, relation: str) -> str:
    for name in SOLVABLE:
        if message.startswith(f"{name}:"):
            return f"--{name.replace('_', '-')}{message[len(name) :]}"
    if "under add-remove" in message and relation == "add-remove":
        return f"{message}; --relation replace-one may have one"
    return message


def _of_mechanism(
    said: dict[str, Any], sampling: Sampling, relation: Relation, group: int, records: int | None
) -> Question:
    from audit.accounting.events import SampledGaussian

    if missing := [name for name in SOLVABLE if said[name] is None]:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in missing)
        raise BadInput(f"missing: {flags}; give it, or let --calibrate epsilon=X find one of them")
    event = SampledGaussian(said["noise_multiplier"], said["sample_rate"], said["steps"], sampling)
    unit: Unit = "record" if group == 1 else "user"
    return Question((event,), said["delta"], relation, unit, group, records, _described((event,)))


def _of_ledger(
    path: Path, delta: float | None, relation: Relation, group: int | None, records: int | None
) -> Question:
    from audit.ledger_readers import read

    try:
        ledger = read(path)
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror}") from None
    header = ledger.header
    if delta is None:
        delta = header.delta if header else None
    if delta is None:
        raise BadInput(f"{path}: names no δ; say where ε is asked for with --delta")
    notes = ledger.notes
    if ledger.problems:
        notes += (f"the ledger has faults: see dpassay ledger verify {path}",)
    group = group or (header.group_size if header else 1)
    return Question(
        ledger.events(),
        delta,
        relation,
        header.unit if header and group == 1 else "record" if group == 1 else "user",
        group,
        records or (header.records if header else None),
        _described(ledger.events()),
        notes,
    )


def _described(events: Sequence[MechanismEvent]) -> tuple[str, ...]:
    from audit.accounting.events import released

    return tuple(released(event) for event in events) or ("nothing was released",)


def _calibrate(
    asked: str,
    said: dict[str, Any],
    sampling: Sampling,
    relation: Relation,
    accountant: Literal["RDP", "tightest"],
) -> str:
    """Fill in the one number that ``said`` lacks, and say it in words."""
    from audit.accounting import calibrate

    name, _, value = asked.partition("=")
    try:
        target = float(value)
    except ValueError:
        target = math.nan
    if name.strip() not in ("epsilon", "ε") or not 0 < target < math.inf:
        raise BadInput(f"--calibrate: needs epsilon=X with a positive X, got {asked!r}")
    missing = [key for key in SOLVABLE if said[key] is None]
    if len(missing) != 1:
        flags = ", ".join(f"--{key.replace('_', '-')}" for key in missing or SOLVABLE)
        raise BadInput(f"--calibrate: leave out exactly one of {flags}")
    (unknown,) = missing
    given = {key: said[key] for key in SOLVABLE if key != unknown}
    solve: Any = getattr(calibrate, unknown)
    found = solve(target, **given, sampling=sampling, relation=relation, accountant=accountant)
    if unknown != "steps":  # printed digits must meet the target too
        digits = 5 - math.floor(math.log10(found))
        away = math.ceil if unknown in ("noise_multiplier", "delta") else math.floor
        found = float(f"{away(found * 10.0**digits) / 10.0**digits:.6g}")
    said[unknown] = found
    return f"{unknown.replace('_', ' ')} {found:g} meets ε = {target:g} ({accountant})"


def _print(question: Question, found: Sequence[PrivacyGuarantee], solved: str) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    who = f"one {question.unit}"
    if question.group_size > 1:
        who = f"a user of {question.group_size} records"
    table = Table(
        title=f"{'; '.join(question.what)}\nδ = {question.delta:g}, {who}, {question.relation}",
        title_justify="left",
    )
    for column in ("accountant", "ε at most", "ε at least"):
        table.add_column(column, justify="left" if column == "accountant" else "right")
    table.add_column("is it a guarantee?", overflow="fold", ratio=1)
    for guarantee in found:
        proved = guarantee.guaranteed and math.isfinite(guarantee.epsilon)
        verdict = "yes" if proved else "no"
        notes = "; ".join(guarantee.notes)
        table.add_row(
            guarantee.accountant,
            _up(guarantee.epsilon),
            _down(guarantee.lower) if guarantee.guaranteed else "",
            f"{verdict}; {notes}" if notes else verdict,
        )
    if solved:
        console.print(solved, style="bold")
    console.print(table)
    best = found[0]
    for rate in (100 * alarm for alarm in FALSE_ALARMS):
        caught = min(math.ceil(best.tpr_at(rate / 100) * 1000) / 10, 100)
        console.print(
            f"An attacker with {rate:.4g} % false alarms catches at most {caught:g} % of the "
            f"members ({best.accountant})."
        )
    for note in (*_warnings(question), *question.notes):
        console.print(f"note: {note}", markup=False)


def _warnings(question: Question) -> tuple[str, ...]:
    if question.records and question.delta >= 1 / question.records:
        return (
            f"δ = {question.delta:g} is not below 1/{question.records}: a mechanism that publishes "
            "a random record whole would satisfy it",
        )
    return ()


def _as_json(
    question: Question, found: Sequence[PrivacyGuarantee], solved: dict[str, Any] | None
) -> dict[str, Any]:
    return {
        "events": list(question.what),
        **({"calibrated": solved} if solved else {}),
        "guarantees": [
            {
                "accountant": g.accountant,
                "epsilon": _number(g.epsilon),
                "epsilon_at_least": _number(g.lower),
                "delta": g.delta,
                "unit": g.unit,
                "group_size": g.group_size,
                "relation": g.relation,
                "steps": g.steps,
                "guaranteed": g.guaranteed,
                "notes": list(g.notes),
                "curve": dict(zip(("delta", "epsilon"), map(list, g.curve), strict=True)),
                "tpr_at_fpr": {str(rate): g.tpr_at(rate) for rate in FALSE_ALARMS},
                "trade_off": dict(zip(("fpr", "tpr"), map(list, g.trade_off), strict=True)),
            }
            for g in found
        ],
        "notes": [*_warnings(question), *question.notes],
    }


def _number(value: float) -> float | str:
    return value if math.isfinite(value) else "Infinity"


def _up(epsilon: float) -> str:
    """Rounded up: a printed bound is a bound."""
    return "∞" if math.isinf(epsilon) else _rounded(epsilon, math.ceil)


def _down(epsilon: float) -> str:
    return "∞" if math.isinf(epsilon) else _rounded(epsilon, math.floor)


def _rounded(value: float, rounding: Any) -> str:
    if value == 0:
        return "0"
    digits = max(0, 3 - math.floor(math.log10(abs(value))))
    hair = 1e-9 if rounding is math.floor else -1e-9  # 5.0 must not become 5.001
    return f"{rounding(value * 10**digits + hair) / 10**digits:.{digits}f}"
