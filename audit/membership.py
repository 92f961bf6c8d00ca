"""From an AUDIT.yaml to membership attacks on its target and on the positive control."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from attacks import registry
from attacks.baselines import blind_baseline, distribution_shift
from attacks.breakdown import by_group
from attacks.records import Membership
from attacks.result import AttackResult, write_json, write_scores
from attacks.shadows.fleet import Shadows
from attacks.targets import Array, allows
from audit.config import AuditConfig, TransformersTarget
from audit.models import Model, builtin_control, classes_of, load_model
from audit.record_files import read_membership
from audit.to_record import Subject
from audit.yaml_file import InputError
from reports.record import Input

Watch = Callable[[str], Callable[[int, int], None]]
"""From the name of a stage to its progress callback, called as (done, of how many)."""


MOST_GROUPS = 20  # values that a column may have and still be a list of groups


class OutOfTime(Exception):
    """The seconds that the configuration allows are used up."""


def within(seconds: float | None, watch: Watch) -> Watch:
    """The same callbacks; they raise OutOfTime once so many seconds from now are used up."""
    if seconds is None:
        return watch
    end = time.monotonic() + seconds

    def timed(stage: str) -> Callable[[int, int], None]:
        show = watch(stage)

        def report(done: int, total: int) -> None:
            show(done, total)
            if done < total and time.monotonic() > end:
                raise OutOfTime(f"the {seconds:g} seconds of budget.seconds were used up")

        return report

    return timed


@dataclass(frozen=True, eq=False)
class Loaded:
    """What an audit attacks: the records, the target, and the control where there is one."""

    records: Membership
    names: tuple[str, ...]
    model: Model
    control: Model | None
    inputs: tuple[Input, ...]


@dataclass(frozen=True, eq=False)
class MembershipAudit:
    """What the attacks found.

    ``names`` are the feature columns. ``void``: the blind baseline told members from non-members
    without the target, so that no result speaks of it. ``unfinished`` are the attacks on the target
    that the time did not allow, and why. ``groups`` names a column and gives each member's and each
    non-member's group in it; there are none where persons are judged.
    """

    records: Membership
    names: tuple[str, ...]
    model: Model
    blind: AttackResult
    void: bool
    results: tuple[tuple[Subject, AttackResult], ...]
    unfinished: tuple[tuple[str, OutOfTime], ...]
    inputs: tuple[Input, ...]
    confidence: float
    groups: dict[str, tuple[Array, Array]]


def shared_confidence(config: AuditConfig, others: int = 0) -> float:
    """The confidence of one attack's intervals, so that those of all together have the config's.

    ``others`` are the attacks on the same target that are not about membership.
    """
    return 1 - (1 - config.confidence) / max(1, len(config.attacks) + others)


def load(config: AuditConfig) -> Loaded:
    """The records, the target and the positive control of a configuration, before any attack.

    Raises:
        InputError: if an input cannot be used, or an attack cannot run on this kind of target.
    """
    assert config.records is not None
    assert config.target is not None
    text = config.target.text if isinstance(config.target, TransformersTarget) else None
    records, names, inputs = read_membership(config.records, text, classes_of(config.target))
    model = load_model(config.target, records.members, names, records.classes, config.seed)
    for name in config.attacks:
        _check(name, model)
    control = _control(config, records, names)
    read = (*inputs, *model.inputs, *(control.inputs if control else ()))
    return Loaded(records, names, model, control, read)


def attack_target(
    config: AuditConfig,
    watch: Watch,
    shadow_folder: Path | None = None,
    columns: Sequence[str] = (),
    loaded: Loaded | None = None,
) -> MembershipAudit:
    """Run every attack of the configuration on its target, then on the positive control.

    ``loaded`` is what ``load`` gave, if it ran already.
    ``shadow_folder`` keeps what shadow models answered, so that a run that was interrupted trains
    only those that are missing. ``columns`` are those that figures are wanted by, beside the label.

    Raises:
        InputError: if an input cannot be used, or an attack cannot run on this kind of target.
    """
    loaded = loaded or load(config)
    records, names, model = loaded.records, loaded.names, loaded.model
    groups = {} if records.of_persons else _groups(records, names, columns)
    blind = blind_baseline(records, seed=config.seed)
    watch("blind baseline")(1, 1)  # only now: no shortage of time may cost the records' check
    results: list[tuple[Subject, AttackResult]] = []
    unfinished = []
    attackable: list[tuple[Subject, Model | None]] = [
        ("target", model),
        ("positive control", loaded.control),
    ]
    for subject, attacked in attackable:
        if attacked is None:
            continue
        shadows = _shadows(config, attacked, shadow_folder)
        for name in config.attacks:
            if not _possible(name, attacked, subject):
                continue
            try:
                result = registry.run(
                    name,
                    attacked.target,
                    records,
                    shadows=shadows,
                    seed=config.seed,
                    progress=watch(f"{name}: {subject}"),
                )
            except OutOfTime as error:
                if subject == "target":
                    unfinished.append((name, error))
                continue
            except ValueError as error:  # records that this model cannot take, too few to train on
                raise InputError(f"attacks: {name} on the {subject}: {error}") from None
            results.append((subject, result))
    void = distribution_shift(blind, config.confidence)
    return MembershipAudit(
        records=records,
        names=names,
        model=model,
        blind=blind,
        void=void,
        results=tuple(results),
        unfinished=tuple(unfinished),
        inputs=loaded.inputs,
        confidence=shared_confidence(config),
        groups=groups,
    )


def write(audit: MembershipAudit, folder: Path) -> None:
    """Each result as JSON, with figures by group on the target, and its scores as Parquet."""
    for subject, result in (("blind baseline", audit.blind), *audit.results):
        control = ".positive-control" if subject == "positive control" else ""
        groups = {
            column: by_group(result, inside, outside, audit.confidence)
            for column, (inside, outside) in audit.groups.items()
            if subject == "target"
        }
        path = folder / f"{result.name}{control}.json"
        write_json(result, path, confidence=audit.confidence, groups=groups)
        write_scores(result, path.with_suffix(".parquet"))


def _groups(
    records: Membership, names: tuple[str, ...], columns: Sequence[str]
) -> dict[str, tuple[Array, Array]]:
    by = {name: _values(records, names, name) for name in columns}
    return {"label": (records.members.labels, records.non_members.labels)} | by


def _values(records: Membership, names: tuple[str, ...], name: str) -> tuple[Array, Array]:
    """A column of both sides; numbers of many values are cut into four equal shares."""
    columns = names or tuple(map(str, range(records.members.features[0].size)))
    if name not in columns:
        raise InputError(f"--group: no column {name!r}; the records have {', '.join(columns[:20])}")
    inside, outside = (
        side.features.reshape(len(side), -1)[:, columns.index(name)]
        for side in (records.members, records.non_members)
    )
    everyone = np.concatenate([inside, outside])
    if len(np.unique(everyone.astype(np.str_))) <= MOST_GROUPS:
        return _named(inside), _named(outside)
    try:
        numbers = everyone.astype(np.float64)
    except ValueError:
        raise InputError(f"--group: {name}: more than {MOST_GROUPS} values; group them") from None
    cuts = np.quantile(numbers, [0.25, 0.5, 0.75])
    labels = np.array(
        [
            f"below {cuts[0]:.6g}",
            f"{cuts[0]:.6g} to {cuts[1]:.6g}",
            f"{cuts[1]:.6g} to {cuts[2]:.6g}",
            f"{cuts[2]:.6g} and above",
        ]
    )
    group = labels[np.searchsorted(cuts, numbers, side="right")]
    return group[: len(inside)], group[len(inside) :]


def _check(name: str, model: Model) -> None:
    try:
        entry = registry.find(name)
    except ValueError as error:
        raise InputError(str(error)) from None
    if entry.needs_shadows and model.fit is None:
        raise InputError(
            f"attacks: {name} trains shadow models, and the target does not say how; give "
            "target.training (a torch target) or leave the attack out"
        )
    if not allows(model.target.access, entry.access):
        raise InputError(
            f"attacks: {name} needs {entry.access}, the target's access is "
            f"{model.target.access!r}; leave it out or grant more under target.access"
        )


def _possible(name: str, model: Model, subject: Subject) -> bool:
    """Whether a control can be attacked like this; the target was checked, and is refused aloud."""
    entry = registry.find(name)
    if subject == "target":
        return True
    if entry.needs_shadows and model.fit is None:
        return False
    return allows(model.target.access, entry.access)


def _control(config: AuditConfig, records: Membership, names: tuple[str, ...]) -> Model | None:
    """The model that is known to leak, trained on or loaded for the same members."""
    if config.positive_control == "none":
        return None
    if config.positive_control == "builtin":
        if records.members.features.dtype.kind not in "biuf":
            return None  # no forest on texts; the gate then says that nothing showed its power
        return builtin_control(records.members, config.seed)
    return load_model(config.positive_control, records.members, names, records.classes, config.seed)


def _shadows(config: AuditConfig, model: Model, folder: Path | None) -> Shadows | None:
    if model.fit is None:
        return None
    return Shadows(
        model.fit,
        models=config.budget.shadow_models,
        seed=config.seed,
        folder=folder,
        recipe=model.recipe,
        workers=config.budget.workers,
        fit_many=model.fit_many,
    )


def _named(values: Array) -> Array:
    """A group's name for each value; 2.0 is called 2."""
    return np.array([f"{v:.12g}" if isinstance(v, int | float) else str(v) for v in values])
