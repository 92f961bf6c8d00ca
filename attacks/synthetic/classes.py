"""Equivalence classes: the records that agree in some columns, and what a class gives away."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attacks.synthetic.rows import Hashes
from attacks.targets import Floats

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Classes:
    """``order``: the records, class by class (n,); ``start`` and ``size`` of each class (c,)."""

    order: Ints
    start: Ints
    size: Ints


def classes(keys: Hashes) -> Classes:
    """The classes of records with equal keys (n,)."""
    order = np.argsort(keys)
    ordered = keys[order]
    start = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    return Classes(order, start, np.diff(start, append=len(keys)))


def class_sizes(keys: Hashes) -> Ints:
    """How many records, itself among them, have each record's key (n,).

    Without sorting, where it can be: keys of one bucket are all equal, or else sorted.
    """
    buckets, count = _buckets(keys, len(keys))
    member = np.empty(count, dtype=np.int64)
    member[buckets] = np.arange(len(keys))
    sizes: Ints = np.bincount(buckets, minlength=count)[buckets]
    unlike = keys[member[buckets]] != keys
    if unlike.any():
        mixed = np.zeros(count, dtype=np.bool_)
        mixed[buckets[unlike]] = True
        rows = np.flatnonzero(mixed[buckets])
        _, place, counts = np.unique(keys[rows], return_inverse=True, return_counts=True)
        sizes[rows] = counts[place]
    return sizes


def among(wanted: Hashes, keys: Hashes) -> NDArray[np.bool_]:
    """Which of the wanted keys (m,) are among the others (n,): first by bucket, then exactly."""
    (theirs, count), (ours, _) = _buckets(keys, len(keys)), _buckets(wanted, len(keys))
    filled = np.zeros(count, dtype=np.bool_)
    filled[theirs] = True
    found: NDArray[np.bool_] = filled[ours]
    filled[:] = False
    filled[ours[found]] = True
    found[found] = np.isin(wanted[found], keys[filled[theirs]])
    return found


def l_diversity(of: Classes, secret: Ints) -> int:
    """The fewest distinct values of the secret's codes (n,) in a class.

    Distinct l-diversity (Machanavajjhala et al. 2007, section 4).
    """
    owner, _, _ = _cells(of, secret)
    return int(np.bincount(owner).min())


def t_closeness(of: Classes, secret: Ints, ordered: bool) -> float:
    """The largest distance of a class' distribution of the secret (n,) from everybody's.

    Li, Li and Venkatasubramanian (2007, section 5): the earth mover's distance with equal distances
    between values, or, where the codes are ``ordered``, with the distance of their places.
    """
    counts = np.bincount(secret)
    if len(counts) == 1:
        return 0.0
    if ordered:
        return float(_along_the_order(of, secret, counts).max() / (len(counts) - 1))
    owner, value, count = _cells(of, secret)
    shares, everybody = count / of.size[owner], counts[value] / len(secret)
    present = np.bincount(owner, np.abs(shares - everybody) - everybody)
    return float((1 + present).max() / 2)


def _buckets(keys: Hashes, n: int) -> tuple[Ints, int]:
    """Each key's bucket by its first bits, and how many there are: eight for each of n or so."""
    bits = min(n.bit_length() + 3, 20)
    return (keys >> np.uint64(64 - bits)).astype(np.int64), 1 << bits


def _cells(of: Classes, secret: Ints) -> tuple[Ints, Ints, Ints]:
    """Class, value and number of records, for each value that a class has."""
    values = int(secret.max()) + 1
    owner = np.repeat(np.arange(len(of.size)), of.size)
    cells, count = np.unique(owner * values + secret[of.order], return_counts=True)
    return cells // values, cells % values, count


def _along_the_order(of: Classes, secret: Ints, counts: Ints) -> Floats:
    """Sum over places of the difference between a class' and everybody's cumulated shares (c,).

    A class' cumulated share is constant between its members' places, everybody's Q rises: on each
    such piece the difference changes its sign once, where Q reaches the class' level.
    """
    everybody = counts.cumsum() / len(secret)
    area = np.concatenate([[0.0], everybody.cumsum()])
    owner = np.repeat(np.arange(len(of.size)), of.size)
    member = of.order[np.lexsort((secret[of.order], owner))]
    pieces = of.size + 1
    first = of.start + np.arange(len(of.size))
    begin, end = np.zeros(pieces.sum(), np.int64), np.full(pieces.sum(), len(counts))
    inner = np.ones(len(begin), np.bool_)
    inner[first] = False
    begin[inner] = secret[member]
    inner = np.ones(len(begin), np.bool_)
    inner[first + of.size] = False
    end[inner] = secret[member]
    level = (np.arange(len(begin)) - np.repeat(first, pieces)) / np.repeat(of.size, pieces)
    turn = np.clip(np.searchsorted(everybody, level), begin, end)
    below = level * (turn - begin) - (area[turn] - area[begin])
    above = area[end] - area[turn] - level * (end - turn)
    return np.add.reduceat(below + above, first)
