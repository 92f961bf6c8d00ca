"""Guesses a record's sensitive column from its other columns, its label and the target.

The attack works on a ``Pool``: members and non-members together, in an order that tells nothing,
and the reference records. Who is a member comes back only when the guesses are sorted into sides.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from attacks.attribute.answers import ask
from attacks.attribute.column import sensitive_column
from attacks.attribute.methods import Beliefs, Method, confusion, find
from attacks.attribute.question import Question, check
from attacks.attribute.reference import look_alikes, set_reference_aside, without_target
from attacks.attribute.result import AttributeResult, Side
from attacks.records import Membership, Pool, Records
from attacks.targets import AccessDenied, Floats, Target, allows, positions

Codes = NDArray[np.int64]


def infer(
    target: Target,
    records: Membership,
    questions: Sequence[Question],
    *,
    names: Sequence[str] = (),
    attacks: Sequence[str] = ("yeom", "confidence"),
    neighbours: int = 10,
    bins: int = 5,
    seed: int = 0,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[AttributeResult, ...]:
    """Run every attack on every question; results in the order of the questions.

    A question costs records × values × ``neighbours`` queries (one neighbour where every other
    column is known), whatever the number of attacks; label-only attacks ask about each reference
    record besides. Columns that the attacker does not know are taken from the reference records
    nearest in those that he knows, and the answers are averaged over them.

    Args:
        target: the classifier.
        records: members and non-members, a numeric or mixed table (n, d). The reference records are
            its ``auxiliary``; without them, a random half of the non-members.
        questions: what to guess from what.
        names: the columns' names (d,); without them they are called 0, 1, 2, ...
        attacks: names out of ``attacks.attribute.methods``.
        neighbours: K, the reference records that unknown columns are taken from, at most 20.
        bins: into how many a numeric column with many values is cut, at most 20.
        seed: for the half that becomes the reference, and for the control.
        progress: called with the records done and all there are, over all questions; first with 0.

    Raises:
        AccessDenied: if an attack needs more than the target's access level.
        ValueError: names what cannot be used: records that are no table, a column that is missing,
            constant or has too many categories, too few records, a label that the target does not
            know.
    """
    called = _names(records, names)
    methods = _methods(target, attacks)
    check(questions, called)
    for name, value, least in (("neighbours", neighbours, 1), ("bins", bins, 2)):
        if not least <= value <= 20:
            raise ValueError(f"{name}: must be from {least} to 20, got {value}")
    attack = _prepare(target, set_reference_aside(records, seed), methods, neighbours, bins, seed)
    results: list[AttributeResult] = []
    total = len(questions) * len(attack.pool)
    progress(0, total)
    for number, question in enumerate(questions):
        before = number * len(attack.pool)
        results += _answer(attack, question, called, partial(_advance, progress, before, total))
    return tuple(results)


def _advance(progress: Callable[[int, int], None], before: int, total: int, done: int) -> None:
    progress(before + done, total)


@dataclass(frozen=True, eq=False)
class _Attack:
    """What all questions share. ``rows`` are the pool's rows of members, then of non-members."""

    target: Target
    judged: Membership
    pool: Pool
    rows: tuple[Codes, Codes]
    labels: Codes
    reference: Records
    reference_labels: Codes
    methods: tuple[Method, ...]
    confusion: Floats | None
    neighbours: int
    bins: int
    seed: int


def _prepare(
    target: Target,
    judged: Membership,
    methods: tuple[Method, ...],
    neighbours: int,
    bins: int,
    seed: int,
) -> _Attack:
    reference = judged.auxiliary
    assert reference is not None
    for name, side in (
        ("members", judged.members),
        ("non-members", judged.non_members),
        ("reference records", reference),
    ):
        try:
            positions(side.labels, target.classes)
        except ValueError as error:
            raise ValueError(f"{name}: {error}; leave these records out") from None
    pool, order = judged.pool()
    rows = np.argsort(order)
    count = len(judged.members)
    labels_only = any(method.access == "label" for method in methods)
    return _Attack(
        target,
        judged,
        pool,
        (rows[:count], rows[count:]),
        positions(pool.labels, target.classes),
        reference,
        positions(reference.labels, target.classes),
        methods,
        confusion(target, reference) if labels_only else None,
        neighbours,
        bins,
        seed,
    )


def _answer(
    attack: _Attack, question: Question, called: list[str], progress: Callable[[int], None]
) -> list[AttributeResult]:
    """Every attack's result on one question."""
    started = time.monotonic()
    features, reference = attack.pool.features, attack.reference.features
    at = called.index(question.column)
    rest = [i for i in range(len(called)) if i != at]
    known = [called.index(name) for name in question.known] or rest
    column = sensitive_column(question.column, reference[:, at], features[:, at], attack.bins)
    values = len(column.values)
    alike = np.zeros((len(features), 1), dtype=np.int64)  # unused where all columns are known
    if some_unknown := len(known) < len(rest):
        alike = look_alikes(features[:, known], reference[:, known], attack.neighbours)
    control = without_target(
        features[:, known],
        attack.labels,
        reference[:, known],
        attack.reference_labels,
        column.codes(reference[:, at]),
        values,
        attack.seed,
    ).argmax(axis=1)
    answers = ask(
        attack.target,
        features,
        attack.labels,
        at=at,
        candidates=column.candidates,
        known=known,
        others=reference[alike],
        scores=any(method.access == "scores" for method in attack.methods),
        progress=progress,
    )
    truth = column.codes(features[:, at])
    beliefs = Beliefs(column.prior, attack.confusion)
    results = []
    for method in attack.methods:
        logs = _log_posterior(method.evidence(answers, beliefs))
        guesses = _guesses(logs, column.prior)
        sides = [
            Side(
                ids=side.ids,
                truth=truth[rows],
                guesses=guesses[rows],
                control_guesses=control[rows],
                confidence=np.exp(logs[rows, guesses[rows]]),
                scores=logs[rows, truth[rows]],
            )
            for side, rows in zip(
                (attack.judged.members, attack.judged.non_members), attack.rows, strict=True
            )
        ]
        confusions = len(reference) if method.access == "label" else 0
        results.append(
            AttributeResult(
                attack=method.name,
                title=method.title,
                access=method.access,
                column=question.column,
                known=tuple(called[i] for i in known),
                values=column.values,
                binned=column.edges is not None,
                members=sides[0],
                non_members=sides[1],
                reference=len(reference),
                neighbours=attack.neighbours if some_unknown else 0,
                seed=attack.seed,
                queries=len(features) * values * alike.shape[1] + confusions,
                seconds=time.monotonic() - started,
                source=method.source,
                notes=attack.judged.notes,
            )
        )
    return results


def _log_posterior(evidence: Floats) -> Floats:
    """Each value's share of the evidence (n, V), as a logarithm.

    Rounded to six digits: where the target does not look at the column all shares are the prior's,
    and the last bits would tell sure answers (members') from unsure ones.
    """
    logs: Floats = np.round(np.log(evidence / evidence.sum(axis=1, keepdims=True)), 6)
    return logs


def _guesses(logs: Floats, prior: Floats) -> Codes:
    """The likeliest value of each record (n,); of equals the most frequent, then the first."""
    ties = logs == logs.max(axis=1, keepdims=True)
    guesses: Codes = np.where(ties, prior, -1.0).argmax(axis=1)
    return guesses


def _names(records: Membership, names: Sequence[str]) -> list[str]:
    features = records.members.features
    if features.ndim != 2 or features.shape[1] < 2:
        raise ValueError(
            f"features: shape {features.shape}; attribute inference needs a table of two columns "
            "or more, and neither texts nor images are one"
        )
    called = list(names) or [str(i) for i in range(features.shape[1])]
    if len(called) != features.shape[1] or len(set(called)) != len(called):
        raise ValueError(
            f"names: {len(set(called))} different names for {features.shape[1]} columns; give each "
            "its own"
        )
    return called


def _methods(target: Target, attacks: Sequence[str]) -> tuple[Method, ...]:
    methods = tuple(find(name) for name in attacks)
    if not methods or len(set(attacks)) != len(methods):
        raise ValueError("attacks: name one or more, each once")
    for method in methods:
        if not allows(target.access, method.access):
            raise AccessDenied(
                f"attacks: {method.name} needs {method.access}, the target's access is "
                f"{target.access!r}"
            )
    return methods
