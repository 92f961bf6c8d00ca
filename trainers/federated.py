"""FedAvg (McMahan et al. 2017, algorithm 1) over sites that each train with DP, in one process.

In each round a site takes the server's weights, makes its share of DP-SGD steps on its own records
and sends its weights back; the server averages them by public weights. All noise is the site's own,
so what it sends is private already: its ledger's ε holds against the server and the other sites.
A person at several sites is covered by the composition of these sites' ledgers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch import nn

from trainers.federated_account import Cost, Spent, costs, lineage, spent
from trainers.federated_files import State, describe, release, write_json
from trainers.federated_site import LEDGER, Site, SiteDropped, Weights, due
from trainers.networks import build

OnRound = Callable[[int, Sequence[str]], None]
STATE = "rounds.safetensors"
OWN = ("epochs", "batch_size", "privacy", "seed")  # what each site chooses for itself


@dataclass(frozen=True)
class Federated:
    """A trained model, the files that hold it, and what it cost.

    Attributes:
        rounds: the sites that took part in each.
        people: ε at ``delta`` of a person at each site alone and at each declared group of sites:
            the trainer's own figures. Infinite where ``record`` says why.
        record: federated.json.
    """

    model: nn.Module
    weights: Path
    record: Path
    ledgers: Mapping[str, Path]
    rounds: tuple[tuple[str, ...], ...]
    people: tuple[Cost, ...]
    delta: float

    @property
    def epsilon(self) -> float:
        """ε of the person whom the run cost most."""
        return max(cost.epsilon for cost in self.people)


def federate(
    sites: Sequence[Site],
    out: Path,
    *,
    rounds: int,
    overlap: Sequence[Sequence[str]] | None = None,
    public_counts: bool = False,
    on_round: OnRound | None = None,
    resume: bool = False,
) -> Federated:
    """Train one model over all sites and write it, each site's ledger, and federated.json.

    A site whose ``train`` raises ``SiteDropped`` is left out of the round's average; what it spent
    stays counted. After a kill ``resume`` goes on from the last whole round: the steps of the round
    that was cut off are lost to the model, not to the ledgers.

    Args:
        sites: at least one; the first one's seed makes the initial weights.
        out: folder of the server's files and of each site's folder.
        overlap: groups of sites where one person may have records; nobody is at sites that share
            no group. Without it one person may be at all of them.
        public_counts: states that the true numbers of records are public. Otherwise a size or
            weight that equals them is a data access, reported as such, with ε = ∞.
        on_round: called after each round with its number, from 1, and the sites in it.

    Raises:
        ValueError: naming the site, if sites differ in model or configuration, a ledger cannot be
            used or lacks the steps behind what the site sent, or weights are not the model's.
    """
    _check(sites, rounds)
    groups = _groups([site.name for site in sites], overlap)
    state = out / STATE
    if resume != state.exists():
        said = "is missing, so there is no run to resume"
        if state.exists():
            said = "exists; resume its run, or give a new run a folder of its own"
        raise ValueError(f"{state}: {said}")
    saved = State.read(state, sites, rounds) if resume else None
    weights = saved.weights if saved else _initial(sites[0])
    history = list(saved.history) if saved else []
    with ExitStack() as stack, torch.random.fork_rng(devices=[]):
        for number, site in enumerate(sites):
            stack.callback(site.close)
            site.begin(out / site.name, rounds, number, saved.steps[site.name] if saved else None)
        ledgers = _ledgers(sites, out)
        State(weights, history, _steps(ledgers)).write(state, rounds)
        while len(history) < rounds:
            sent = _collect(sites, len(history), weights)
            before, ledgers = ledgers, _ledgers(sites, out)
            for name, received in sent.items():
                _accept(name, received, weights)
                _counted(before[name], ledgers[name], rounds, len(history))
            if sent:
                weights = average(sent, {site.name: site.weight for site in sites})
            history.append(tuple(sent))
            State(weights, history, _steps(ledgers)).write(state, rounds)
            if on_round is not None:
                on_round(len(history), history[-1])
        model = release(sites, out, weights, len(history))
        for site in sites:
            site.finish(out / "model.safetensors")
    ledgers = _ledgers(sites, out)
    delta = min(site.privacy.delta for site in sites)
    read = {} if public_counts else counts_read(sites)
    people = costs(ledgers, groups, delta, read)
    write_json(out / "lineage.json", lineage(people, delta, read))
    record = describe(sites, out, history, ledgers, people, delta, read, public_counts)
    write_json(out / "federated.json", record)
    state.unlink()
    return Federated(
        model=model,
        weights=out / "model.safetensors",
        record=out / "federated.json",
        ledgers={site.name: out / site.name / LEDGER for site in sites},
        rounds=tuple(history),
        people=people,
        delta=delta,
    )


def average(sent: Mapping[str, Weights], weight: Mapping[str, float]) -> Weights:
    """The mean of the sites' weights, each site counted by its public weight, summed in float64."""
    total = math.fsum(weight[name] for name in sent)
    first = next(iter(sent.values()))
    mean = {key: torch.zeros_like(value, dtype=torch.float64) for key, value in first.items()}
    for name, received in sent.items():
        for key, value in received.items():
            mean[key] += weight[name] / total * value.double()
    return {key: value.to(first[key].dtype) for key, value in mean.items()}


def counts_read(sites: Sequence[Site]) -> dict[str, str]:
    """The sites whose size or weight gives their true number of records away, and how."""
    found = {}
    ratios = [site.weight / site.records for site in sites]
    counted = len({site.records for site in sites}) > 1 and math.isclose(min(ratios), max(ratios))
    for site in sites:
        if site.size == site.records:
            found[site.name] = "its size is its exact number of records"
        elif len(sites) > 1 and (counted or site.weight == site.records):
            found[site.name] = "its weight is, or goes with, its exact number of records"
    return found


def _check(sites: Sequence[Site], rounds: int) -> None:
    if not sites:
        raise ValueError("sites: there are none")
    if rounds < 1:
        raise ValueError(f"rounds: must be at least 1, got {rounds}")
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        raise ValueError("torch.distributed: is running; federate trains all sites in one process")
    first = sites[0]
    for k, site in enumerate(sites):
        if site.name in [other.name for other in sites[:k]]:
            raise ValueError(f"site {site.name}: name: two sites have it")
        ours, theirs = _shared(first), _shared(site)
        for name in ours:
            if ours[name] != theirs[name]:
                raise ValueError(
                    f"site {site.name}: {name}: is {theirs[name]!r}, and {ours[name]!r} at site "
                    f"{first.name}; give all sites one model and configuration"
                )


def _shared(site: Site) -> dict[str, Any]:
    settings = {k: v for k, v in asdict(site.config).items() if k not in OWN}
    return settings | {"features": site.arguments["inputs"]}


def _groups(
    names: Sequence[str], overlap: Sequence[Sequence[str]] | None
) -> tuple[tuple[str, ...], ...]:
    """The groups of two and more sites, without repetition."""
    declared = [names] if overlap is None else overlap
    for name in (name for group in declared for name in group):
        if name not in names:
            raise ValueError(f"overlap: there is no site {name!r}")
    ordered = (tuple(name for name in names if name in group) for group in declared)
    return tuple(dict.fromkeys(group for group in ordered if len(group) > 1))


def _initial(site: Site) -> Weights:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(site.config.seed)
        return dict(build(**site.arguments).state_dict())


def _ledgers(sites: Sequence[Site], out: Path) -> dict[str, Spent]:
    return {site.name: spent(out / site.name / LEDGER, site.name) for site in sites}


def _steps(ledgers: Mapping[str, Spent]) -> dict[str, int]:
    return {name: ledger.steps for name, ledger in ledgers.items()}


def _collect(sites: Sequence[Site], number: int, weights: Weights) -> dict[str, Weights]:
    """What the sites that take part in round ``number`` (from 0) send, by their names."""
    sent = {}
    for site in sites:
        with suppress(SiteDropped):
            sent[site.name] = site.train(number, weights)
    return sent


def _counted(before: Spent, after: Spent, rounds: int, number: int) -> None:
    """Refuse what a site sent if its ledger did not grow by the steps of the round."""
    share = due(after.planned, rounds, number, before.steps)
    if after.steps < before.steps + max(share, 1):
        raise ValueError(
            f"site {after.site}: round {number + 1}: its ledger lacks the steps behind the weights "
            "that it sent; they are refused"
        )


def _accept(name: str, received: Weights, ours: Weights) -> None:
    shapes = {key: value.shape for key, value in received.items()}
    if shapes != {key: value.shape for key, value in ours.items()}:
        raise ValueError(f"site {name}: sent weights of another model; they are refused")
    if not all(torch.isfinite(value).all() for value in received.values()):
        raise ValueError(f"site {name}: sent weights that are not finite; they are refused")
