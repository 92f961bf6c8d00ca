"""What an attribute attack returns, the figures taken of it, and its files."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attacks.breakdown import Group
from attacks.files import whole_file
from attacks.metrics import Estimate, Figure, advantage, auc, clopper_pearson, measure, wilson
from attacks.targets import AccessLevel, Array, Floats

Codes = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Side:
    """Members or non-members, one entry a record (n,); values by their place in ``values``.

    ``control_guesses`` are the attacker's without the target. ``confidence`` is the posterior of
    the guess, ``scores`` the log posterior of the TRUE value: how near the attack came to it.

    Raises:
        ValueError: if lengths differ or a score is NaN.
    """

    ids: Array
    truth: Codes
    guesses: Codes
    control_guesses: Codes
    confidence: Floats
    scores: Floats

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            column = np.array(getattr(self, field.name))
            if column.shape != np.shape(self.ids):
                raise ValueError(f"{field.name}: {column.shape}, there are {len(self.ids)} ids")
            if column.dtype.kind == "f" and np.isnan(column).any():
                raise ValueError(f"{field.name}: NaN")
            column.setflags(write=False)
            object.__setattr__(self, field.name, column)

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, eq=False)
class AttributeResult:
    """One attack on one question, members beside non-members.

    ``values`` are the names that codes stand for, bins where ``binned``. ``access`` is what the
    attack used, ``reference`` the number of records behind its priors and its control,
    ``neighbours`` how many of them filled in unknown columns (0: none was unknown). ``queries`` are
    what this attack needs on its own; attacks on one question share them.
    """

    attack: str
    title: str
    access: AccessLevel
    column: str
    known: tuple[str, ...]
    values: tuple[str, ...]
    binned: bool
    members: Side
    non_members: Side
    reference: int
    neighbours: int = 0
    seed: int = 0
    queries: int = 0
    seconds: float = 0.0
    source: str = ""
    notes: tuple[str, ...] = ()


def figures(result: AttributeResult, confidence: float = 0.95) -> tuple[Figure, ...]:
    """Every figure of one result.

    ``accuracy_*`` and ``control_accuracy_*`` are shares of right guesses with Clopper-Pearson
    intervals. ``advantage`` is accuracy on members minus that on non-members (Yeom et al. 2018's
    attribute advantage), ``control_advantage`` the same without the target: both by Newcombe's
    hybrid score interval for independent proportions (1998). ``gain_over_control`` is accuracy on
    members minus the control's on the same members, by Newcombe's interval for paired ones.
    ``auc``, ``tpr_at_fpr_x`` and their lower tails compare the scores of the true values.
    """
    inside, outside = result.members, result.non_members
    right, false = (side.guesses == side.truth for side in (inside, outside))
    plain, plain_false = (side.control_guesses == side.truth for side in (inside, outside))
    ranking = measure(inside.scores, outside.scores, confidence=confidence, seed=result.seed)
    return (
        Figure("advantage", _difference(right, false, confidence)),
        Figure("accuracy_members", _share(right, confidence)),
        Figure("accuracy_non_members", _share(false, confidence)),
        Figure("control_accuracy_members", _share(plain, confidence)),
        Figure("control_accuracy_non_members", _share(plain_false, confidence)),
        Figure("gain_over_control", paired_difference(right, plain, confidence)),
        Figure("control_advantage", _difference(plain, plain_false, confidence)),
        *(f for f in ranking if f.name == "auc" or "tpr_at_fpr" in f.name),
    )


def by_value(result: AttributeResult, confidence: float = 0.95) -> tuple[Group, ...]:
    """Accuracy, advantage and AUC among the records that have each value, rare ones too.

    The intervals of all V values hold together at this confidence: each is taken at
    1 - (1 - confidence) / V (Bonferroni).
    """
    each = shared_confidence(confidence, len(result.values))
    groups = []
    for code, name in enumerate(result.values):
        inside, outside = (side.truth == code for side in (result.members, result.non_members))
        sizes = (name, int(inside.sum()), int(outside.sum()))
        if not inside.any() or not outside.any():
            groups.append(Group(*sizes, unmeasured="nobody has the value on one side"))
            continue
        right = result.members.guesses[inside] == code
        false = result.non_members.guesses[outside] == code
        ranks = auc(result.members.scores[inside], result.non_members.scores[outside], each)
        taken = (
            Figure("advantage", _difference(right, false, each)),
            Figure("accuracy_members", _share(right, each)),
            Figure("accuracy_non_members", _share(false, each)),
            Figure("auc", ranks),
        )
        groups.append(Group(*sizes, taken))
    return tuple(groups)


def shared_confidence(confidence: float, tried: int) -> float:
    """The confidence of each of ``tried`` intervals that hold together at this one (Bonferroni)."""
    return 1 - (1 - confidence) / max(1, tried)


def paired_difference(one: Array, other: Array, confidence: float = 0.95) -> Estimate:
    """Share of ``one`` minus share of ``other``, both true or false of the same records (n,).

    Newcombe (1998, "Improved confidence intervals for the difference between binomial proportions
    based on paired data"), method 10: Wilson's intervals of both shares, joined with regard to
    their correlation.

    Raises:
        ValueError: if the two differ in length or are empty.
    """
    one, other = np.asarray(one, dtype=np.bool_), np.asarray(other, dtype=np.bool_)
    n = len(one)
    if n == 0 or one.shape != other.shape:
        raise ValueError(f"paired: {one.shape} beside {other.shape}; give the same records twice")
    both, neither = int((one & other).sum()), int((~one & ~other).sum())
    first, second = int((one & ~other).sum()), int((~one & other).sum())
    margins = (both + first) * (second + neither) * (both + second) * (first + neither)
    excess: float = both * neither - first * second
    if excess > 0:
        excess = max(excess - n / 2, 0.0)
    phi = excess / np.sqrt(margins) if margins else 0.0
    (p, p_low, p_high), (q, q_low, q_high) = (
        (hits / n, *wilson(hits, n, confidence)) for hits in (both + first, both + second)
    )
    below = (p - p_low) ** 2 - 2 * phi * (p - p_low) * (q_high - q) + (q_high - q) ** 2
    above = (p_high - p) ** 2 - 2 * phi * (p_high - p) * (q - q_low) + (q - q_low) ** 2
    value = (first - second) / n
    low, high = value - np.sqrt(max(below, 0.0)), value + np.sqrt(max(above, 0.0))
    method = "Newcombe 1998, paired"
    return Estimate(max(float(low), -1.0), value, min(float(high), 1.0), confidence, method, n)


def plain(results: Sequence[AttributeResult], confidence: float = 0.95) -> list[dict[str, Any]]:
    """Every result without its records, with its figures, as data for JSON.

    The intervals pay for the number of results: each is taken at 1 - (1 - confidence) / results.
    """
    each = shared_confidence(confidence, len(results))
    told = []
    for result in results:
        sides = ("members", "non_members")
        about: dict[str, Any] = {
            field.name: getattr(result, field.name)
            for field in dataclasses.fields(result)
            if field.name not in sides
        }
        about |= {side: len(getattr(result, side)) for side in sides}
        about["figures"] = [dataclasses.asdict(f) for f in figures(result, each)]
        about["by_value"] = [dataclasses.asdict(g) for g in by_value(result, each)]
        told.append(about)
    return told


def write_json(
    results: Sequence[AttributeResult],
    path: Path,
    confidence: float = 0.95,
    about: dict[str, Any] | None = None,
) -> None:
    """``plain`` as a JSON file, under what ``about`` says: whole or not at all."""
    told = {**(about or {}), "confidence": confidence, "results": plain(results, confidence)}
    text = json.dumps(told, ensure_ascii=False, indent=1, allow_nan=False)
    with whole_file(path) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")


def write_guesses(results: Sequence[AttributeResult], path: Path) -> None:
    """One row for each record of each result as Parquet: whole or not at all.

    Columns: ``id``, ``member``, ``attack``, ``column``, ``known`` (a list), ``truth``, ``guess``,
    ``control_guess``, ``confidence`` (of the guess), ``score`` (of the truth).
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    def table(result: AttributeResult) -> Any:
        sides = (result.members, result.non_members)
        n = sum(map(len, sides))
        values = np.array(result.values, dtype=object)

        def joined(field: str) -> Array:
            return np.concatenate([getattr(side, field) for side in sides])

        return pa.table(
            {
                "id": joined("ids").tolist(),
                "member": np.repeat([True, False], [len(side) for side in sides]),
                "attack": [result.attack] * n,
                "column": [result.column] * n,
                "known": [list(result.known)] * n,
                "truth": values[joined("truth")].tolist(),
                "guess": values[joined("guesses")].tolist(),
                "control_guess": values[joined("control_guesses")].tolist(),
                "confidence": joined("confidence"),
                "score": joined("scores"),
            }
        )

    with whole_file(path) as temporary, pq.ParquetWriter(temporary, table(results[0]).schema) as to:
        for result in results:
            to.write_table(table(result))


def _share(hits: Array, confidence: float) -> Estimate:
    return clopper_pearson(int(hits.sum()), len(hits), confidence)


def _difference(members: Array, non_members: Array, confidence: float) -> Estimate:
    return advantage(members.astype(np.float64), non_members.astype(np.float64), 0.5, confidence)
