"""AUDIT.yaml as pydantic models: what a person may ask of an audit, checked before it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveFloat, field_validator, model_validator

from audit.claims.schema import ClaimEntry
from audit.gate.policy import Policy
from audit.yaml_file import InputError, Strict, load
from reports.record import AccessLevel

ImportPath = Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")]
Recipe = Literal[
    "random_forest", "gradient_boosting", "logistic_regression", "nearest_neighbour", "mlp"
]


class Training(Strict):
    """How to train one more model like the target: what a shadow-model attack needs.

    ``function`` is ``module:function``, called as ``function(features, labels, seed, **arguments)``
    and returns a model of the target's kind. It is the auditor's own code and is run as such.
    """

    function: ImportPath
    arguments: dict[str, Any] = {}


class SklearnTarget(Strict):
    """A scikit-learn estimator saved with skops; shadow models are unfitted clones of it."""

    kind: Literal["sklearn"]
    model: Path
    access: AccessLevel = "scores"
    trusted: list[str] = []


class RecipeTarget(Strict):
    """A named scikit-learn recipe, trained on the members when the audit runs."""

    kind: Literal["recipe"]
    recipe: Recipe
    arguments: dict[str, Any] = {}
    access: AccessLevel = "scores"


class TorchTarget(Strict):
    """A torch module: weights as safetensors, and the ``module:function`` that builds it."""

    kind: Literal["torch"]
    weights: Path
    factory: ImportPath
    arguments: dict[str, Any] = {}
    training: Training | None = None
    access: AccessLevel = "logits"


class TrainedTarget(Strict):
    """A folder that ``dpassay train`` wrote: weights, architecture and how it was trained."""

    kind: Literal["trained"]
    folder: Path
    access: AccessLevel = "logits"


class TransformersTarget(Strict):
    """A folder with a transformers model for sequence classification."""

    kind: Literal["transformers"]
    folder: Path
    text: str = "text"
    access: AccessLevel = "logits"


class ScoresTarget(Strict):
    """Per-record scores that somebody else computed: for those who cannot reach the model.

    The file has a column of scores and a column that says who was a member (0/1, true/false).
    """

    kind: Literal["scores"]
    file: Path
    score: str = "score"
    member: str = "member"
    id: str | None = None
    higher_means: Literal["member", "non-member"]
    split: Literal["randomised", "unknown"] = "unknown"


Target = Annotated[
    SklearnTarget | RecipeTarget | TorchTarget | TrainedTarget | TransformersTarget | ScoresTarget,
    Field(discriminator="kind"),
]


class Records(Strict):
    """The records that the attacks try to tell apart.

    ``split`` says how members were chosen. Only a randomised split lets an attack's figure speak
    about the model and not about a difference between the two files. ``user`` names the column of
    the person behind each record; persons are then judged as wholes. ``auxiliary`` is a file of
    further records of the same population that the target never saw.
    """

    members: Path
    non_members: Path
    auxiliary: Path | None = None
    label: str = "label"
    id: str | None = None
    user: str | None = None
    split: Literal["randomised", "unknown"] = "unknown"


class Attribute(Strict):
    """A sensitive column, and what the attackers who guess it know of a record besides its label.

    Each list in ``known`` is one attacker; so is every three of the columns in ``triples``. Without
    either he knows all other columns. ``attacks`` default to those that use the target's access.
    """

    column: str
    known: list[Annotated[list[str], Field(min_length=1)]] = []
    triples: list[str] = []
    attacks: list[str] = []


class Budget(Strict):
    """What the audit may spend, and where: ``workers`` are processes (-1: one a core), or ``ray``.

    Small networks of `dpassay train` are trained together on all cores, whatever ``workers`` says,
    unless it is ``ray``.
    """

    shadow_models: Annotated[int, Field(ge=1, le=10_000)] = 16
    seconds: PositiveFloat | None = None
    workers: Annotated[int, Field(ge=-1)] | Literal["ray"] = 1

    @field_validator("workers")
    @classmethod
    def _some(cls, workers: int | str) -> int | str:
        if workers == 0:
            raise ValueError("0 can train nothing; give 1 or more, -1 for one a core, or ray")
        return workers


class AuditConfig(Strict):
    """One audit. Paths are relative to the file that names them."""

    version: Literal[1] = 1
    title: str = Field(min_length=1)
    description: str = ""
    seed: int = Field(default=0, ge=0, lt=2**32)
    target: Target | None = None
    records: Records | None = None
    positive_control: Target | Literal["builtin", "none"] = "builtin"
    attacks: list[str] = Field(default=["loss_threshold"], min_length=1)
    attributes: list[Attribute] = []
    budget: Budget = Budget()
    ledger: Path | None = None
    model_files: list[Path] = []
    claims: list[ClaimEntry] = []
    policy: Policy | Path | None = None
    confidence: float = Field(default=0.95, gt=0.5, lt=1)

    @model_validator(mode="after")
    def _complete(self) -> AuditConfig:
        scores = isinstance(self.target, ScoresTarget)
        if self.target is not None and not scores and self.records is None:
            raise ValueError("records: missing; name the member and the non-member file")
        if scores and self.records is not None:
            raise ValueError("records: a scores file says itself who was a member; remove this key")
        control = self.positive_control
        if scores and not isinstance(control, ScoresTarget | str):
            raise ValueError("positive_control: must be a scores file, as the target is one")
        if not scores and isinstance(control, ScoresTarget):
            raise ValueError("positive_control: must be a model, as the target is one")
        if self.target is None and self.ledger is None and not self.claims:
            raise ValueError("nothing to audit: give a target, a ledger or claims")
        if self.attributes and (scores or isinstance(self.target, TransformersTarget)):
            raise ValueError("attributes: need a model of tables to ask; remove this key")
        if self.attributes and self.records is None:
            raise ValueError("attributes: need a target and records; give both or remove this key")
        if len({asked.column for asked in self.attributes}) != len(self.attributes):
            raise ValueError("attributes: a column is named twice; put what is known into one")
        if len(set(self.attacks)) != len(self.attacks):
            raise ValueError("attacks: named twice; keep one of each")
        ids = [claim.id for claim in self.claims]
        if len(set(ids)) != len(ids):
            raise ValueError("claims: two claims share an id; give each its own")
        return self


def load_config(path: Path) -> AuditConfig:
    """The configuration in ``path`` with every path in it made relative to the working folder.

    Raises:
        InputError: if the file cannot be used, or a file that it names does not exist.
    """
    config = load(path, AuditConfig)
    base = path.parent
    resolved: AuditConfig = _resolve(config, base, path, "")
    if isinstance(resolved.policy, Path):
        resolved = resolved.model_copy(update={"policy": load(resolved.policy, Policy)})
    return resolved


def policy_file(path: Path) -> Path | None:
    """The file that the configuration in ``path`` takes its policy from; None without one.

    Raises:
        InputError: if the configuration cannot be used.
    """
    policy = load(path, AuditConfig).policy
    return path.parent / policy if isinstance(policy, Path) else None


def _resolve(model: Any, base: Path, source: Path, field: str) -> Any:
    if isinstance(model, Path):
        found = base / model
        try:
            there = found.exists()
        except OSError:  # a name that is too long, a folder that may not be looked into
            there = False
        if not there:
            raise InputError(f"{source}: {field}: {found} does not exist; correct the path")
        return found
    if isinstance(model, list):
        return [_resolve(item, base, source, f"{field}[{i}]") for i, item in enumerate(model)]
    if isinstance(model, Strict):
        names = type(model).model_fields
        update = {
            name: _resolve(getattr(model, name), base, source, f"{field}.{name}".lstrip("."))
            for name in names
        }
        return model.model_copy(update=update)
    return model
