"""Records with the truth of who was in, and the checks that make this truth worth testing.

An attack never sees ``Membership``: it is handed a ``Pool``, the same records without the truth, in
an order that depends on their content alone. So neither position nor file can give a member away.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from attacks.targets import Array, positions

Bools = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Records:
    """Features (n, ...) or texts (n,), labels (n,) and stable ids (n,); ids default to positions.

    ``users`` (n,) names the person behind each record, where several belong to one.

    Raises:
        ValueError: if there are no records, lengths differ, ids repeat, or a feature or label is
            NaN or infinite.
    """

    features: Array
    labels: Array
    ids: Array = field(default_factory=lambda: np.empty(0, dtype=np.str_))
    users: Array | None = None

    def __post_init__(self) -> None:
        set_field = object.__setattr__
        features, labels = np.asarray(self.features), np.asarray(self.labels)
        ids = np.asarray(self.ids) if len(self.ids) else np.arange(len(features))
        set_field(self, "features", features)
        set_field(self, "labels", labels)
        set_field(self, "ids", ids.astype(np.str_))
        if len(features) == 0:
            raise ValueError("records: there are none")
        for name, column in (("labels", labels), ("ids", ids), ("users", self.users)):
            if column is not None and np.shape(column) != (len(features),):
                raise ValueError(
                    f"{name}: shape {np.shape(column)}, expected ({len(features)},) as the features"
                )
        if len(np.unique(self.ids)) != len(ids):
            raise ValueError("ids: they repeat; each record needs its own")
        try:
            "".join(self.ids.tolist()).encode()
        except UnicodeEncodeError:
            raise ValueError("ids: hold half a character (a lone surrogate); rewrite") from None
        for name, values in (("features", features), ("labels", labels)):
            if values.dtype.kind == "f" and (bad := ~np.isfinite(values)).any():
                row = int(np.argwhere(bad)[0][0])
                raise ValueError(f"{name}: NaN or infinite in record {self.ids[row]}; fill or drop")

    def __len__(self) -> int:
        return len(self.features)

    def take(self, rows: Any) -> Records:
        """The records at these positions, or where this mask holds."""
        users = None if self.users is None else np.asarray(self.users)[rows]
        return Records(self.features[rows], self.labels[rows], self.ids[rows], users)


@dataclass(frozen=True, eq=False)
class Pool:
    """What an attack sees of the records: features and labels in an order that tells nothing.

    ``auxiliary`` are further records of the same population that the target never saw.
    """

    features: Array
    labels: Array
    classes: Array
    users: Array | None = None
    auxiliary: Records | None = None

    def __len__(self) -> int:
        return len(self.features)


@dataclass(frozen=True, eq=False)
class Membership:
    """Members and non-members of a target's training set.

    ``split`` says if the two sides were drawn by a recorded coin; ``unknown`` leaves it to the
    blind baseline to find out. ``notes`` hold what a reader of the result must know. ``auxiliary``
    are further records of the same population, on neither side, which the attacker may learn from.
    Where both sides name persons (``of_persons``), these are what an attack tells apart.

    Raises:
        ValueError: if the two sides or the auxiliary records differ in shape, a side has records of
            one class only, a label is none of the classes, or a record stands on both sides
            (``Membership.of`` removes it) or is auxiliary as well.
    """

    members: Records
    non_members: Records
    classes: Array
    split: Literal["randomised", "unknown"] = "unknown"
    notes: tuple[str, ...] = ()
    auxiliary: Records | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "classes", np.asarray(self.classes))
        inside, outside = self.members, self.non_members
        for name, other in (("non-members", outside), ("auxiliary", self.auxiliary)):
            if other is not None and inside.features.shape[1:] != other.features.shape[1:]:
                raise ValueError(
                    f"{name}: records of shape {other.features.shape[1:]}, "
                    f"members have {inside.features.shape[1:]}; give both the same columns"
                )
        for name, side in (("members", inside), ("non-members", outside)):
            try:
                found = np.unique(positions(side.labels, self.classes))
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
            if len(found) < 2:
                raise ValueError(
                    f"{name}: all records have label {self.classes[found[0]]}; "
                    "an attack needs at least two classes on each side"
                )
        if count := int(_shared(inside, outside).sum()):
            raise ValueError(f"non-members: {count} records are members too; use Membership.of")
        for name, side in (("members", inside), ("non-members", outside)):
            # a copy of either side would tell the attack who is not on the other
            if self.auxiliary is not None and (n := int(_shared(side, self.auxiliary).sum())):
                raise ValueError(
                    f"auxiliary: {n} of the records are {name} too; give records of the same "
                    "population that are on neither side"
                )

    @classmethod
    def of(
        cls,
        members: Records,
        non_members: Records,
        *,
        classes: Sequence[Any] | Array | None = None,
        split: Literal["randomised", "unknown"] = "unknown",
        auxiliary: Records | None = None,
    ) -> Membership:
        """The two sides without the records whose content stands more than once, which is noted.

        Exact copies (same features and label) on both sides were trained on, whatever the file
        says. Copies on one side go as well: k copies all fall to one side with p^k against
        (1 - p)^k, so what is left of them would tell unequal sides apart, and copies that share
        one score are not independent. What goes depends on the records alone and not on the coin.
        Near duplicates stay and are counted in the notes. ``classes`` default to the labels that
        occur.

        Raises:
            ValueError: if a person has records on both sides (where persons are named, it is
                persons that the coin must fall for), nothing is left of a side, or as the class.
        """
        if classes is None:
            classes = np.unique(np.concatenate([members.labels, non_members.labels]))
        notes = []
        both = np.intersect1d(_persons(members), _persons(non_members))
        if len(both):
            raise ValueError(
                f"persons: {len(both)} have records on both sides, such as {both[0]!s}; draw "
                "persons, not records, as members, or do not name persons"
            )
        if members.features.shape[1:] == non_members.features.shape[1:]:
            again = _repeated(members, non_members)
            counts = [int(rows.sum()) for rows in again]
            if sum(counts):
                members, non_members = _without((members, non_members), again)
                notes.append(
                    f"{counts[0]} members and {counts[1]} non-members have exact copies among the "
                    "records: not judged"
                )
            near, compared = near_duplicates(members, non_members)
            if near:
                notes.append(
                    f"{near} of {compared} non-members compared are near copies of members: kept, "
                    "they make an attack look weaker than it is"
                )
        return cls(members, non_members, np.asarray(classes), split, tuple(notes), auxiliary)

    @property
    def of_persons(self) -> bool:
        """Whether both sides name the person behind each record."""
        return self.members.users is not None and self.non_members.users is not None

    def pool(self) -> tuple[Pool, NDArray[np.int64]]:
        """The records without the truth, and each one's position among members then non-members."""
        both = (self.members, self.non_members)
        features = np.concatenate([side.features for side in both])
        labels = np.concatenate([side.labels for side in both])
        ids = np.concatenate([side.ids for side in both])
        digests = _digests(features, labels)
        order = np.lexsort((ids, np.array(digests)))
        users = None
        if self.of_persons:
            users = np.concatenate([np.asarray(side.users) for side in both])[order]
        pool = Pool(features[order], labels[order], self.classes, users, self.auxiliary)
        return pool, order


def _persons(side: Records) -> Array:
    return np.empty(0, dtype=np.str_) if side.users is None else np.asarray(side.users)


def _repeated(members: Records, non_members: Records) -> list[Bools]:
    """Which records of each side have a content that stands more than once on both together."""
    single = np.float32 in (members.features.dtype, non_members.features.dtype)
    sides = (members, non_members)
    digests = [_digests(side.features, side.labels, single) for side in sides]
    count = Counter(digests[0] + digests[1])
    return [np.array([count[d] > 1 for d in side], dtype=np.bool_) for side in digests]


def _without(sides: tuple[Records, Records], gone: list[Bools]) -> tuple[Records, Records]:
    for name, rows in zip(("members", "non-members"), gone, strict=True):
        if rows.all():
            raise ValueError(
                f"{name}: every one has an exact copy among the records; so coarse a table cannot "
                "tell who was trained on"
            )
    members, non_members = (side.take(~rows) for side, rows in zip(sides, gone, strict=True))
    return members, non_members


def by_person(side: Records, scores: NDArray[np.float64]) -> tuple[Array, NDArray[np.float64]]:
    """Each person of a side once, and the mean (p,) of his records' scores (n,).

    Records of one person are not independent, so intervals over records would be too narrow, and
    what was split between members and non-members is persons.
    """
    names, of_whom = np.unique(np.asarray(side.users, dtype=np.str_), return_inverse=True)
    return names, np.bincount(of_whom, scores) / np.bincount(of_whom)


def near_duplicates(
    members: Records, non_members: Records, *, fraction: float = 0.01, limit: int = 5000
) -> tuple[int, int]:
    """How many non-members nearly equal a member, and how many were compared (at most ``limit``).

    Near means: closer to a member than ``fraction`` of the median distance from one member to the
    next, in columns scaled to unit variance. Texts are near if they agree but for case and spaces.
    """
    compared = non_members.features[:limit]
    if members.features.dtype.kind not in "biuf":
        known = {_plain_text(text) for text in members.features}
        return sum(_plain_text(text) in known for text in compared), len(compared)
    from sklearn.neighbors import NearestNeighbors

    rows = np.asarray(members.features, dtype=np.float64).reshape(len(members), -1)
    if len(rows) < 3:
        return 0, len(compared)
    scale = np.where(rows.std(axis=0) > 0, rows.std(axis=0), 1.0)
    finder = NearestNeighbors(n_neighbors=2).fit(rows / scale)
    typical = np.median(finder.kneighbors(rows[:limit] / scale)[0][:, 1])
    others = np.asarray(compared, dtype=np.float64).reshape(len(compared), -1)
    distance = finder.kneighbors(others / scale, n_neighbors=1)[0][:, 0]
    return int((distance < fraction * typical).sum()), len(compared)


def content_digest(features: Array, labels: Array) -> str:
    """The SHA-256 over all records' content in this order."""
    return hashlib.sha256(b"".join(_digests(features, labels))).hexdigest()


def _shared(members: Records, non_members: Records) -> Bools:
    single = np.float32 in (members.features.dtype, non_members.features.dtype)
    known = set(_digests(members.features, members.labels, single))
    theirs = _digests(non_members.features, non_members.labels, single)
    return np.fromiter((digest in known for digest in theirs), dtype=np.bool_, count=len(theirs))


def _digests(features: Array, labels: Array, single: bool = False) -> list[bytes]:
    """One digest for each record's content; ``single`` compares numbers in single precision."""
    if features.dtype.kind in "biuf":
        rows = np.array(features, np.float32 if single else np.float64).reshape(len(features), -1)
        rows[rows == 0] = 0  # -0.0 has other bytes
        contents = [row.tobytes() for row in rows]
    else:
        contents = [b"".join(map(_cell, np.ravel(row).tolist())) for row in features]
    keys = [_label_key(label) for label in labels.tolist()]
    return [
        hashlib.blake2b(content + b"\x1e" + key, digest_size=16).digest()
        for content, key in zip(contents, keys, strict=True)
    ]


def _cell(value: Any) -> bytes:
    """A cell's content with its length, so that no two rows run together; 37 is 37.0."""
    text = str(value).encode("utf-8", "surrogatepass")
    if isinstance(value, bool | int | float) and float(value) == value:
        text = repr(float(value) + 0.0).encode()
    return str(len(text)).encode() + b":" + text


def _label_key(label: Any) -> bytes:
    return repr(float(label) if isinstance(label, bool | int | float) else label).encode()


def _plain_text(value: Any) -> str:
    return " ".join(" ".join(map(str, np.ravel(value))).casefold().split())
