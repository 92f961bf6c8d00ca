"""What is asked of an attribute attack: which column, from which others."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Question:
    """Which column is guessed, and from which columns; none named means from all the others."""

    column: str
    known: tuple[str, ...] = ()


def triples(column: str, names: Sequence[str]) -> tuple[Question, ...]:
    """One question for each three of these columns.

    Raises:
        ValueError: if there are fewer than three.
    """
    if len(names) < 3:
        raise ValueError(f"triples: {', '.join(names) or 'none'}; name three columns or more")
    return tuple(Question(column, three) for three in itertools.combinations(names, 3))


def check(questions: Sequence[Question], names: Sequence[str]) -> None:
    """Refuse questions that records with columns of these names cannot answer.

    Raises:
        ValueError: if there is no question, one is asked twice, a column does not exist, or is to
            be guessed and known at once.
    """
    if not questions:
        raise ValueError("questions: there are none; name a column to guess")
    for question in questions:
        for name in (question.column, *question.known):
            if name not in names:
                listed = ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")
                raise ValueError(f"column {name!r}: there is none; the records have {listed}")
        if question.column in question.known:
            raise ValueError(
                f"known: {question.column!r} is the column to guess; leave it out of the known ones"
            )
        if len(set(question.known)) != len(question.known):
            raise ValueError(f"known: {', '.join(question.known)}: a column is named twice")
    asked = [(q.column, frozenset(q.known or set(names) - {q.column})) for q in questions]
    if len(set(asked)) != len(asked):
        raise ValueError("questions: the same columns are asked about twice; keep one")
