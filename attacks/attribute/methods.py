"""The attacks: from the target's answers about each candidate to the evidence for it.

Every attack sees the same answers about the same completed records; they differ in what they take
from them, and so in the access they need.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from attacks.attribute.answers import Answers
from attacks.records import Records
from attacks.targets import AccessLevel, Floats, Target, positions

TINY = 1e-12  # a likelihood of 0 would forbid a value for ever; this only makes it unlikely


@dataclass(frozen=True, eq=False)
class Beliefs:
    """What the attacker knows beforehand, from the reference records alone.

    ``prior`` (V,) is how frequent each value is; ``confusion`` (C, C) is how often the target gives
    each label to a record of each true label, None where no attack asks for it.
    """

    prior: Floats
    confusion: Floats | None = None


def yeom(answers: Answers, beliefs: Beliefs) -> Floats:
    """Likelihood of the true label times the value's prior (Yeom et al. 2018, section 4)."""
    assert answers.likelihood is not None
    evidence: Floats = np.maximum(answers.likelihood.mean(axis=2), TINY) * beliefs.prior
    return evidence


def fredrikson(answers: Answers, beliefs: Beliefs) -> Floats:
    """P(predicted label | true label) times the value's prior (Fredrikson et al. 2014)."""
    assert beliefs.confusion is not None
    errors = beliefs.confusion[answers.labels[:, None, None], answers.predicted]
    evidence: Floats = errors.mean(axis=2) * beliefs.prior
    return evidence


def confidence(answers: Answers, beliefs: Beliefs) -> Floats:
    """Right and sure before right and unsure, before wrong and unsure (Mehnaz et al. 2022).

    Their rule takes the candidate with the right label, the surest where there are several, and
    where there is none the least sure. That is the order of the confidence, negative where the
    label is wrong; here moved to (0, 1). No prior is used.
    """
    assert answers.confidence is not None
    right = answers.predicted == answers.labels[:, None, None]
    signed = np.where(right, answers.confidence, -answers.confidence)
    evidence: Floats = np.maximum((1 + signed.mean(axis=2)) / 2, TINY)
    return evidence


@dataclass(frozen=True)
class Method:
    """One attack: its function, the access it needs, and its paper."""

    name: str
    title: str
    access: AccessLevel
    evidence: Callable[[Answers, Beliefs], Floats]
    source: str


METHODS = {
    method.name: method
    for method in (
        Method("yeom", "Likelihood of the label times prior", "scores", yeom, "Yeom et al. 2018"),
        Method(
            "fredrikson",
            "Confusion of the predicted label times prior",
            "label",
            fredrikson,
            "Fredrikson et al. 2014",
        ),
        Method(
            "confidence",
            "Right label with the greatest confidence",
            "scores",
            confidence,
            "Mehnaz et al. 2022",
        ),
    )
}


def find(name: str) -> Method:
    """The attack of this name; ValueError lists the names there are."""
    if name not in METHODS:
        raise ValueError(f"attacks: {name!r} is none of {', '.join(METHODS)}")
    return METHODS[name]


def confusion(target: Target, reference: Records) -> Floats:
    """P(predicted label | true label) (C, C), rows the true ones, from labels of the reference.

    One record is added to each cell, so that no answer is impossible.
    """
    truth = positions(reference.labels, target.classes)
    predicted = positions(target.predict_labels(reference.features), target.classes)
    counts = np.ones((len(target.classes), len(target.classes)))
    np.add.at(counts, (truth, predicted), 1)
    shares: Floats = counts / counts.sum(axis=1, keepdims=True)
    return shares
