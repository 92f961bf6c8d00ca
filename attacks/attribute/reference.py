"""What the attacker learns without the target: from records of the population it never saw."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from attacks.attribute.column import is_numeric
from attacks.encoding import encode
from attacks.records import Membership, Records, content_digest
from attacks.targets import Array, Floats

LEAST = 20  # records a side: fewer say nothing, whatever they show
LIMIT = 10_000  # reference records that the control learns from: more would only cost time


def set_reference_aside(records: Membership, seed: int) -> Membership:
    """The records to judge, with the attacker's reference records as their ``auxiliary``.

    Where there are auxiliary records they are the reference. Else a random half of the non-members
    is, and the rest is judged; all records of one person, or all exact copies of one record, go
    together, so that no judged record is better known to the reference than a member can be. Where
    persons are named, one record of each is judged: a person's records depend on one another, and
    intervals take what is judged for independent.

    Raises:
        ValueError: if fewer than 20 members, judged non-members or reference records are left, or a
            side is left with one class.
    """
    others, reference, notes = records.non_members, records.auxiliary, records.notes
    if reference is None:
        contents = _digests(others)
        units = contents if others.users is None else np.asarray(others.users)
        names, unit = np.unique(units, return_inverse=True)
        drawn = np.random.default_rng(seed).permutation(len(names)) < len(names) // 2
        aside = drawn[unit]
        reference = others.take(aside & ~np.isin(contents, contents[~aside]))  # nothing on both
        others = others.take(~aside)
        notes += (
            f"{aside.sum()} of {len(aside)} non-members, drawn at random, were the attacker's "
            "reference and are not judged",
        )
    members = records.members
    if records.of_persons:
        members, others = (_one_of_each(side, seed) for side in (members, others))
        notes += (f"one record of each of {len(members)} and {len(others)} persons is judged",)
    more = "give more non-members, or auxiliary records"
    for name, side, fix in (
        ("members", members, "give more members"),
        ("non-members to judge", others, more),
        ("reference records", reference, more),
    ):
        if len(side) < LEAST:
            raise ValueError(f"{name}: {len(side)}, need {LEAST} or more; {fix}")
    # an order that follows from the content, so that the rows' order changes nothing
    reference = reference.take(np.lexsort((reference.ids, _digests(reference))))
    return Membership(members, others, records.classes, records.split, notes, reference)


def _one_of_each(side: Records, seed: int) -> Records:
    """One record of each person, drawn whatever the order of the rows."""
    order = np.lexsort((side.ids, _digests(side)))
    drawn = np.random.default_rng(seed).permutation(order)
    first = np.unique(np.asarray(side.users)[drawn], return_index=True)[1]
    return side.take(np.sort(drawn[first]))


def look_alikes(known: Array, reference: Array, count: int) -> NDArray[np.int64]:
    """The ``count`` reference records (n, count) nearest to each record in the known columns.

    Gower's distance for mixed columns (1971): a number differs by its distance over the column's
    range, a category by 0 or 1.
    """
    from sklearn.neighbors import NearestNeighbors
    from sklearn.preprocessing import OneHotEncoder

    both = np.concatenate([reference, known])
    numeric = [is_numeric(both[:, column]) for column in range(both.shape[1])]
    numbers = both[:, numeric].astype(np.float64)
    spread = np.ptp(numbers[: len(reference)], axis=0)
    parts = [numbers / np.where(spread > 0, spread, 1.0)]
    if not all(numeric):
        words = both[:, np.logical_not(numeric)].astype(np.str_)
        encoder = OneHotEncoder(sparse_output=False)
        parts.append(encoder.fit_transform(words) / 2)  # where two words differ, two cells do
    places = np.hstack(parts)
    finder = NearestNeighbors(n_neighbors=count, metric="manhattan").fit(places[: len(reference)])
    nearest = finder.kneighbors(places[len(reference) :], return_distance=False)
    return np.asarray(nearest, dtype=np.int64)


def without_target(
    known: Array,
    labels: Array,
    reference: Array,
    reference_labels: Array,
    truth: NDArray[np.int64],
    values: int,
    seed: int,
) -> Floats:
    """P(value | known columns, label) (n, V) by boosted trees on the reference: the control.

    Args:
        known: the known columns (n, k) of the records judged.
        labels: where their labels stand among the classes (n,).
        reference: the known columns (R, k) of the reference records.
        reference_labels: where theirs stand (R,).
        truth: the sensitive value of each reference record (R,), at least two different ones.
        values: V, how many values there are.
        seed: for the records that are left out where there are too many.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier

    _, table = encode(np.concatenate([reference, known]))
    onehot = np.eye(max(reference_labels.max(), labels.max()) + 1)
    table = np.hstack([table, onehot[np.concatenate([reference_labels, labels])]])
    rows = np.random.default_rng(seed).permutation(len(reference))[:LIMIT]
    model = HistGradientBoostingClassifier(
        max_iter=50,
        min_samples_leaf=max(2, min(20, len(rows) // 20)),
        early_stopping=False,  # it would hold out records by value, and rare values have too few
        random_state=seed,
    )
    model.fit(table[rows], truth[rows])
    probabilities = np.zeros((len(known), values))
    probabilities[:, model.classes_] = model.predict_proba(table[len(reference) :])
    return probabilities


def _digests(records: Records) -> Array:
    rows = range(len(records))
    return np.array(
        [content_digest(records.features[i : i + 1], records.labels[i : i + 1]) for i in rows]
    )
