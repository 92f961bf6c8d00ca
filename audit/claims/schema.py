"""CLAIMS.yaml as pydantic models: one model per family, told apart by ``family``.

A claim reaches its check as ``reports.record.Claim``, whose figures are flat: a list or a nested
model is spread over dotted names (``parts.0.epsilon``), and ``entry_of`` builds it up again. So an
archived record can be judged anew from what it holds.
"""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError, model_validator

from audit.accounting.events import SampledGaussian, Sampling
from audit.yaml_file import InputError, Strict, load
from reports.record import Claim, ClaimState, Relation, Unit, Value


def _number(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("must be a number")
    return value


# bounds far beyond what anybody runs, so that squares and sums stay within floating point
Number = Annotated[float, BeforeValidator(_number), Field(ge=-1e15, le=1e15)]
Epsilon = Annotated[Number, Field(ge=0)]
Delta = Annotated[Number, Field(gt=0, lt=1)]
Positive = Annotated[Number, Field(ge=1e-15)]
Share = Annotated[Number, Field(ge=0, le=1)]
Count = Annotated[int, BeforeValidator(_number), Field(ge=1, le=10**12)]


class Mechanism(Strict):
    """What a training run did, as far as it is stated. Noise is σ over the clipping norm.

    The sample rate is given itself or as batch size over records, the steps themselves or as
    epochs. The sampling is Poisson unless stated, as the accountants of DP-SGD assume.
    """

    noise_multiplier: Positive | None = None
    sample_rate: Annotated[Number, Field(gt=0, le=1)] | None = None
    batch_size: Count | None = None
    records: Count | None = None
    steps: Count | None = None
    epochs: Positive | None = None
    sampling: Sampling = "poisson"

    @model_validator(mode="after")
    def _once(self) -> Mechanism:
        if self.batch_size and self.records and self.batch_size > self.records:
            raise ValueError("batch_size: must not exceed records")
        if self.sample_rate and self.batch_size and self.records:
            raise ValueError("sample_rate: follows from batch_size and records; remove one of them")
        if self.steps and self.epochs:
            raise ValueError("epochs: the steps are given as well; remove one of them")
        return self

    def rate(self) -> float | None:
        """q, or None where it is not stated."""
        if self.sampling == "full_batch":
            return 1.0
        if self.sample_rate is None and self.batch_size and self.records:
            return self.batch_size / self.records
        return self.sample_rate

    def step_range(self) -> tuple[int, int] | None:
        """Fewest and most steps: an epoch may drop its last, partial batch, or not."""
        rate = self.rate()
        if self.steps:
            return self.steps, self.steps
        if self.epochs is None or rate is None:
            return None
        per_epoch = 1 / rate
        whole = round(per_epoch) if math.isclose(per_epoch, round(per_epoch)) else None
        few, many = (whole, whole) if whole else (math.floor(per_epoch), math.ceil(per_epoch))
        return max(1, math.floor(self.epochs * few)), max(1, math.ceil(self.epochs * many))

    def missing(self) -> tuple[str, ...]:
        """What an account needs and is not stated."""
        rate, absent = self.rate(), []
        if self.noise_multiplier is None:
            absent.append("noise_multiplier")
        if rate is None:
            either = ("batch_size", self.batch_size), ("records", self.records)
            absent += [name for name, given in either if given is None]
        if not self.steps and self.epochs is None:
            absent.append("epochs")
        return tuple(absent)

    def events(self) -> tuple[SampledGaussian, SampledGaussian]:
        """The mechanism with the fewest and with the most steps that it may have taken.

        Raises:
            ValueError: if something is missing.
        """
        rate, steps, noise = self.rate(), self.step_range(), self.noise_multiplier
        if rate is None or steps is None or noise is None:
            raise ValueError(f"mechanism: not stated: {', '.join(self.missing())}")
        few, many = (SampledGaussian(noise, rate, n, self.sampling) for n in steps)
        return few, many


class Entry(Strict):
    """What every claim has.

    ``release`` names the file that the claim is about as a ledger's checkpoint does: its name or
    SHA-256. ``expected`` is the verdict that a test of the file compares with.
    """

    family: str
    id: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=80)
    statement: str = Field(min_length=1, max_length=2000)
    source: str = Field(default="", max_length=500)
    release: str = Field(default="", max_length=500)
    unit: Unit = "record"
    relation: Relation | Literal["unstated"] = "unstated"
    expected: ClaimState | None = None

    def to_claim(self, source: str) -> Claim:
        """The claim as a record keeps it; ``source`` is the file it stands in."""
        flat: dict[str, Value] = {}
        _flatten("", self.model_dump(exclude_none=True, exclude=set(Entry.model_fields)), flat)
        relation: Relation = "add-remove" if self.relation == "unstated" else self.relation
        if self.relation == "unstated":
            flat["relation"] = "unstated"
        where = self.source or source
        return Claim(
            self.id, self.family, self.statement, flat, self.unit, relation, self.release, where
        )


class DpGuarantee(Mechanism, Entry):
    """A training or a release is (ε, δ)-DP.

    ``limit`` is an ε that the claim is said to meet. ``records_per_user`` is needed where the unit
    is the user. ``noise_seed_published``: whoever knows the seed can subtract the noise.
    """

    family: Literal["dp_guarantee"]
    epsilon: Epsilon
    delta: Delta | None = None
    limit: Epsilon | None = None
    records_per_user: Annotated[Count, Field(le=10**6)] | None = None
    noise_seed_published: bool = False


class NoiseCalibration(Entry):
    """A standard deviation of Gaussian noise suffices for (ε, δ), or a formula gives it."""

    family: Literal["noise_calibration"]
    epsilon: Positive
    delta: Delta
    noise: Positive
    sensitivity: Positive = 1.0
    releases: Count = 1
    formula: Literal["classical", "exact"] | None = None


class Conversion(Entry):
    """A formula that turns RDP or log moments λ(α) into (ε, δ).

    Formulas: ``moments`` δ = exp(λ − αε), ``renyi`` δ = exp((α−1)(λ−ε)), ``mironov``
    ε = λ + log(1/δ)/(α−1), ``tight`` Canonne, Kamath, Steinke 2020.
    """

    family: Literal["conversion"]
    formula: Literal["moments", "renyi", "mironov", "tight"]
    lambda_is: Literal["renyi_divergence", "log_moment", "unstated"] = "unstated"


class Amplification(Entry):
    """Drawing a share of the records lowers a mechanism's ε."""

    family: Literal["amplification"]
    epsilon: Epsilon | None = None
    base_epsilon: Positive | None = None
    sample_rate: Annotated[Number, Field(gt=0, le=1)] | None = None
    formula: Literal["log(1+q(e^eps-1))", "q*eps"] = "log(1+q(e^eps-1))"
    sampling: Sampling = "poisson"
    secret_sample: bool = True


class Part(Mechanism):
    """One part of a composition: its mechanism, or the (ε, δ) that is all that is known of it."""

    epsilon: Epsilon | None = None
    delta: Annotated[Number, Field(ge=0, lt=1)] = 0.0

    @model_validator(mode="after")
    def _known(self) -> Part:
        if (self.epsilon is None) == (self.noise_multiplier is None):
            raise ValueError("give either epsilon (and delta) or a mechanism")
        if self.epsilon is None and (absent := self.missing()):
            raise ValueError(f"{absent[0]}: missing; a mechanism needs it")
        return self


class Composition(Entry):
    """Several parts together cost ε at δ. ``gaussian``: each (ε, δ) is a tight Gaussian release."""

    family: Literal["composition"]
    epsilon: Epsilon
    delta: Annotated[Number, Field(ge=0, lt=1)] | None = None
    parts: list[Part] = Field(min_length=2, max_length=100)
    people: Literal["same", "disjoint"] = "same"
    gaussian: bool = False
    limit: Epsilon | None = None


class AttackFigure(Entry):
    """An attack's figure and what is concluded from it.

    ``n`` counts all records, half of them members, unless ``members`` and ``non_members`` are
    given. Conclusions: the ``figure`` itself; ``protection`` (nothing leaks, or no more than
    ``epsilon`` allows); ``better_than_guessing``; ``contradicts_epsilon``.
    """

    family: Literal["attack_figure"]
    metric: Literal["accuracy", "auc", "tpr"]
    value: Share
    fpr: Annotated[Number, Field(gt=0, lt=1)] | None = None
    n: Count | None = None
    members: Count | None = None
    non_members: Count | None = None
    concludes: Literal["figure", "protection", "better_than_guessing", "contradicts_epsilon"]
    epsilon: Epsilon | None = None
    delta: Annotated[Number, Field(ge=0, lt=1)] = 0.0

    @model_validator(mode="after")
    def _complete(self) -> AttackFigure:
        if (self.metric == "tpr") != (self.fpr is not None):
            raise ValueError("fpr: give it with the metric tpr, and only there")
        if self.concludes == "contradicts_epsilon" and self.epsilon is None:
            raise ValueError("epsilon: missing; say which ε the figure contradicts")
        if (self.members is None) != (self.non_members is None) or (self.n and self.members):
            raise ValueError("n: give n alone, or members and non_members")
        return self


class Fidelity(Entry):
    """Synthetic data are close to real ones: a distance, and the limit that it keeps.

    ``n_real`` and ``n_synthetic`` count records (for ``auc_loss``: of the two test sets, half of
    them positive); ``categories`` counts the levels that a total variation is taken over.
    """

    family: Literal["fidelity"]
    metric: Literal["ks", "tv", "auc_loss"]
    value: Annotated[Number, Field(ge=-1, le=1)]
    limit: Share | None = None
    n_real: Count | None = None
    n_synthetic: Count | None = None
    categories: Annotated[int, Field(ge=2, le=10**9)] | None = None

    @model_validator(mode="after")
    def _distance(self) -> Fidelity:
        if self.metric != "auc_loss" and self.value < 0:
            raise ValueError(f"value: a distance such as {self.metric} is not below 0")
        return self


class Snippet(Mechanism, Entry):
    """What code does to a gradient: read from a Python file (never run) and from a description.

    Asserts: ``bounds_each_record`` (one record moves the result by at most C);
    ``accounted_mechanism`` (it is the mechanism that σ stands for); ``epsilon``.
    """

    family: Literal["snippet"]
    asserts: Literal["bounds_each_record", "accounted_mechanism", "epsilon"]
    file: str | None = None
    clipping: Literal["per_record", "aggregate", "none"] | None = None
    noise_on: Literal["sum", "mean", "none"] | None = None
    noise_divided_by_batch: bool | None = None
    epsilon: Epsilon | None = None
    delta: Delta | None = None

    @model_validator(mode="after")
    def _complete(self) -> Snippet:
        if self.file is None and self.clipping is None and self.noise_on is None:
            raise ValueError("file: missing; name a Python file, or describe clipping and noise_on")
        if self.asserts == "epsilon" and self.epsilon is None:
            raise ValueError("epsilon: missing; say which ε the code is said to give")
        return self


class Scaling(Mechanism, Entry):
    """How ε follows the batch size at equal epochs.

    Either ``exponent`` p, for ε proportional to (batch size)^p, or the two values of ε before and
    after the batch size is multiplied by ``factor``. What is not stated is tried over a grid.
    """

    family: Literal["scaling"]
    exponent: Annotated[Number, Field(ge=-10, le=10)] | None = None
    epsilon_before: Positive | None = None
    epsilon: Positive | None = None
    factor: Positive = 0.5
    delta: Delta = 1e-5

    @model_validator(mode="after")
    def _one_kind(self) -> Scaling:
        pair = self.epsilon_before is not None and self.epsilon is not None
        if (self.exponent is None) != pair:
            raise ValueError("exponent: give it, or epsilon_before and epsilon")
        return self


class NoEffect(Mechanism, Entry):
    """A change that the account does not see is said to lower ε."""

    family: Literal["no_effect"]
    change: Literal["freezing_layers", "smaller_model", "fewer_released_outputs", "post_processing"]
    epsilon: Epsilon
    epsilon_before: Epsilon | None = None
    delta: Delta | None = None


ClaimEntry = Annotated[
    DpGuarantee
    | NoiseCalibration
    | Conversion
    | Amplification
    | Composition
    | AttackFigure
    | Fidelity
    | Snippet
    | Scaling
    | NoEffect,
    Field(discriminator="family"),
]
_ENTRY: TypeAdapter[Any] = TypeAdapter(ClaimEntry)


class ClaimsFile(Strict):
    """A CLAIMS.yaml: claims, and the ledger of the run that they are about, if there is one."""

    version: Literal[1] = 1
    title: str = Field(default="", max_length=500)
    ledger: Path | None = None
    claims: list[ClaimEntry] = Field(min_length=1, max_length=10_000)

    @model_validator(mode="after")
    def _own_ids(self) -> ClaimsFile:
        counts = Counter(claim.id for claim in self.claims)
        if twice := next((name for name, count in counts.items() if count > 1), None):
            raise ValueError(f"claims: two claims share the id {twice!r}; give each its own")
        return self

    def as_claims(self, source: str) -> tuple[Claim, ...]:
        """The claims as a record keeps them."""
        return tuple(entry.to_claim(source) for entry in self.claims)


def read_claims(path: Path) -> ClaimsFile:
    """The claims in a YAML file.

    Raises:
        InputError: if the file cannot be used; the message names line, field and fix.
    """
    return load(path, ClaimsFile)


def entry_of(claim: Claim) -> Any:
    """The family's own model of a claim.

    Raises:
        InputError: if the family is unknown or the figures do not fit it.
    """
    data: dict[str, Any] = {"relation": claim.relation, **_nested(claim.figures)}
    data |= {"id": claim.id, "family": claim.family, "statement": claim.statement}
    data |= {"unit": claim.unit, "release": claim.release, "source": claim.source}
    try:
        return _ENTRY.validate_python(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"][1:])) or "family"
        raise InputError(f"claim {claim.id}: {field}: {first['msg']}") from None


def _flatten(prefix: str, value: Any, flat: dict[str, Value]) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            _flatten(f"{prefix}.{key}" if prefix else key, item, flat)
    elif isinstance(value, list):
        for i, item in enumerate(value):
            _flatten(f"{prefix}.{i}", item, flat)
    else:
        flat[prefix] = value


def _nested(figures: Any) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for name, value in figures.items():
        *parents, last = name.split(".")
        node = tree
        for part in parents:
            node = node.setdefault(part, {})
        node[last] = value
    return {key: _lists(value) for key, value in tree.items()}


def _lists(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    built = {key: _lists(item) for key, item in value.items()}
    if all(key.isdecimal() for key in built):
        return [built[key] for key in sorted(built, key=int)]
    return built
