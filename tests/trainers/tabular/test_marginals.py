"""The marginal generator: its noise, its account, and what comes back where noise is small."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from scipy import stats

from audit.accounting.events import SampledGaussian
from audit.accounting.guarantee import best, guarantees
from audit.ledger import read
from audit.ledger_checks import verify
from trainers.dpsgd.noise import seeded_noise
from trainers.ledger import Header, LedgerWriter
from trainers.tabular import marginals
from trainers.tabular.domain import Domain
from trainers.tabular.estimate import fill
from trainers.tabular.fit import fit
from trainers.tabular.groups import Groups, grouped
from trainers.tabular.measure import Measurements, counts
from trainers.tabular.network import Network, Node, forest
from trainers.tabular.privacy import Privacy, delta_of, epsilon_of, mu_of, table_fingerprint
from trainers.tabular.project import nonnegative, raked, shrunk
from trainers.tabular.release import load

DOMAIN = Domain.model_validate(
    {
        "columns": {
            "a": {"kind": "integer", "low": 0, "high": 3},
            "b": {"kind": "integer", "low": 0, "high": 3},
            "c": {"kind": "category", "levels": ["x", "y", "z"], "missing": True},
            "y": {"kind": "category", "levels": [0, 1]},
        }
    }
)


def chain(n: int, seed: int = 0) -> pd.DataFrame:
    """b follows a, y follows b, c stands alone."""
    rng = np.random.default_rng(seed)
    a = rng.integers(0, 4, n)
    b = np.where(rng.random(n) < 0.7, a, rng.integers(0, 4, n))
    y = (rng.random(n) < 0.1 + 0.25 * b).astype(int)
    c = pd.Series(rng.choice(["x", "y", "z"], n, p=[0.6, 0.3, 0.1])).mask(rng.random(n) < 0.2)
    return pd.DataFrame({"a": a, "b": b, "c": c, "y": y})


class Exact:
    """Stands where measurements stand, adds a given noise, and keeps what was asked."""

    def __init__(self, noise: Callable[[int], NDArray[np.float64]] | None = None) -> None:
        self.asked: list[tuple[NDArray[np.float64], float, float]] = []
        self.answers: list[NDArray[np.float64]] = []
        self.noise = noise or (lambda size: np.zeros(size))

    def release(self, values: Any, sensitivity: float, mu: float, what: str) -> Any:
        self.asked.append((values, sensitivity, mu))
        self.answers.append(values + self.noise(values.size))
        return self.answers[-1]

    tables = Measurements.tables


# --- conversions -----------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 1.0, 8.0])
@pytest.mark.parametrize("delta", [1e-9, 1e-5, 1e-2])
def test_mu_agrees_with_the_auditors_own_gaussian(epsilon: float, delta: float) -> None:
    mu = mu_of(epsilon, delta)
    event = SampledGaussian(1 / mu, 1.0, 1, "full_batch")
    upper = best([event], delta)
    assert upper.epsilon == pytest.approx(epsilon, rel=1e-4)
    assert upper.epsilon <= epsilon
    assert epsilon_of(mu, delta) == pytest.approx(epsilon, rel=1e-5)


def test_delta_is_the_integral_of_the_densities_excess() -> None:
    x = np.linspace(-12, 14, 400_001)
    excess = np.maximum(stats.norm.pdf(x, 1.3) - np.exp(0.7) * stats.norm.pdf(x), 0)
    assert delta_of(1.3, 0.7) == pytest.approx(np.trapezoid(excess, x), rel=1e-6)


@pytest.mark.parametrize(("epsilon", "delta"), [(0, 1e-5), (1, 0), (1, 1), (float("nan"), 1e-5)])
def test_a_promise_out_of_range_is_refused(epsilon: float, delta: float) -> None:
    with pytest.raises(ValueError, match="must lie between"):
        Privacy(epsilon, delta)


# --- measurements ----------------------------------------------------------------------------


def ledger_at(path: Path, records: int) -> LedgerWriter:
    header = Header(
        data_fingerprint="0" * 64, records=records, sampler="full_batch", sample_rate=1.0,
        expected_batch_size=records, clipping="per_sample", clipping_norm=1.0,
        noise_multiplier=1.0, noise_source="seeded",
    )  # fmt: skip
    return LedgerWriter.create(path, header)


def test_noise_has_the_variance_that_the_ledger_says(tmp_path: Path) -> None:
    tables = [np.full(20_000, 7.0), np.full((100, 200), 3.0)]
    with ledger_at(tmp_path / "l", 10) as ledger:
        noisy, deviation = Measurements(ledger, seeded_noise(3), 10).tables(tables, 0.5, "test")
    step = next(m for m in read(tmp_path / "l").mechanisms if isinstance(m, SampledGaussian))
    assert deviation == pytest.approx(np.sqrt(2) / 0.5)
    assert step.noise_multiplier * np.sqrt(2) == pytest.approx(deviation)
    z = np.concatenate([(n - t).ravel() for n, t in zip(noisy, tables, strict=True)]) / deviation
    # two-sided, 1e-3 together: variance by chi-square, shape by Kolmogorov-Smirnov
    assert 2.5e-4 < stats.chi2.cdf((z**2).sum(), z.size) < 1 - 2.5e-4
    assert stats.kstest(z, "norm").pvalue > 5e-4


@pytest.mark.parametrize("label", [None, 3])
def test_one_record_moves_no_measurement_by_more_than_its_sensitivity(label: int | None) -> None:
    """Given the same answers so far: as adaptive composition has it."""
    codes = DOMAIN.encode(chain(60))
    moved = np.zeros(0)
    for gone in range(0, 60, 3):
        rng = np.random.default_rng(gone)
        noise = [rng.normal(0, 2, 4000) for _ in range(4)]
        first = Exact()
        first.noise = lambda size, kept=noise, here=first: kept[len(here.answers)][:size]
        fit(DOMAIN, codes, first, 20.0, label)

        second = Exact()  # sees the other table, and answers what the first one did
        answers = first.answers

        def release(values: Any, *setting: Any, here: Exact = second, told: Any = answers) -> Any:
            here.asked.append((values, *setting[:2]))
            return told[len(here.asked) - 1]

        second.release = release  # type: ignore[method-assign]
        fit(DOMAIN, np.delete(codes, gone, axis=0), second, 20.0, label)
        assert len(first.asked) == len(second.asked) == (3 if label is None else 4)
        for (x, sensitivity, mu), (x_, sensitivity_, mu_) in zip(
            first.asked, second.asked, strict=True
        ):
            assert (sensitivity, mu) == (sensitivity_, mu_)
            moved = np.append(moved, np.linalg.norm(x - x_) / sensitivity)
            assert moved[-1] <= 1 + 1e-12
            assert np.array_equal(x, np.round(x))  # so that float32 holds it exactly
    assert moved.max() == pytest.approx(1)  # the bound is reached


def test_more_records_than_float32_counts_are_refused(tmp_path: Path) -> None:
    with (
        ledger_at(tmp_path / "l", 1) as ledger,
        pytest.raises(ValueError, match="more than 16777216"),
    ):
        Measurements(ledger, seeded_noise(0), 2**24 + 1)


# --- the account -----------------------------------------------------------------------------


@pytest.mark.parametrize("label", [None, "y"])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
def test_the_auditor_recomputes_no_more_than_was_promised(
    tmp_path: Path, epsilon: float, label: str | None
) -> None:
    frame = chain(400)
    gaps = Domain.model_validate(
        {"columns": {**DOMAIN.model_dump()["columns"], "a": {"kind": "integer"}}}
    )
    for name, domain in (("known", DOMAIN), ("gaps", gaps)):
        out = tmp_path / name
        try:
            made = marginals.train(frame, domain, Privacy(epsilon, 1e-5), out, label=label)
        except ValueError as error:  # too little budget for bounds: said, and counted
            assert "too few records for bounds" in str(error)  # noqa: PT017
            assert read(out / "ledger.jsonl").steps == 1
            continue
        ledger = read(made.ledger)
        upper = next(g for g in guarantees(ledger.events(), 1e-5) if g.guaranteed)
        assert upper.epsilon <= epsilon
        assert upper.epsilon == pytest.approx(made.epsilon, rel=1e-3)
        states = {f.check: f.state for f in verify(ledger, [made.weights, made.description])}
        assert set(states.values()) <= {"supported", "not checkable"}
        assert states["ledger.noise"] == states["ledger.file"] == "supported"


def test_nothing_is_spent_on_a_table_that_does_not_fit(tmp_path: Path) -> None:
    frame = chain(50)
    for wrong, said in (
        (frame.assign(c="q"), "column 'c': record 0 holds 'q'"),
        (frame.drop(columns="b"), "lacks column 'b'"),
        (frame.iloc[:0], "no records"),
    ):
        with pytest.raises(ValueError, match=said):
            marginals.train(wrong, DOMAIN, Privacy(1), tmp_path / "out")
    with pytest.raises(ValueError, match="label: 'z' is no column"):
        marginals.train(frame, DOMAIN, Privacy(1), tmp_path / "out", label="z")
    assert not (tmp_path / "out").exists()


def test_a_folder_with_a_run_is_left_alone(tmp_path: Path) -> None:
    marginals.train(chain(50), DOMAIN, Privacy(1), tmp_path)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    assert set(before) == {"generator.json", "weights.safetensors", "ledger.jsonl"}
    with pytest.raises(ValueError, match=r"ledger\.jsonl: exists; give a new run a folder"):
        marginals.train(chain(50), DOMAIN, Privacy(1), tmp_path)
    assert before == {p.name: p.read_bytes() for p in tmp_path.iterdir()}


def test_seeded_runs_repeat_to_the_byte_and_secure_ones_differ(tmp_path: Path) -> None:
    frame = chain(200)
    for name, noise in (("s1", "seeded"), ("s2", "seeded"), ("r1", "secure"), ("r2", "secure")):
        privacy = Privacy(1, noise=noise, seed=5)  # type: ignore[arg-type]
        marginals.train(frame, DOMAIN, privacy, tmp_path / name, label="y")
    for file in ("generator.json", "weights.safetensors", "ledger.jsonl"):
        one, two, three, four = (
            (tmp_path / n / file).read_bytes() for n in ("s1", "s2", "r1", "r2")
        )
        assert one == two
        assert file != "weights.safetensors" or len({one, three, four}) == 3
    drawn = load(tmp_path / "s1").sample(100, 7)
    pd.testing.assert_frame_equal(drawn, load(tmp_path / "s2").sample(100, 7))
    assert not drawn.equals(load(tmp_path / "s1").sample(100, 8))


# --- what is learnt --------------------------------------------------------------------------


@pytest.mark.parametrize("label", [None, "y"])
def test_a_known_tree_comes_back_at_a_large_epsilon(tmp_path: Path, label: str | None) -> None:
    """The total variation of joined pairs stays below 0.02: sampling error alone is 0.007."""
    frame = chain(20_000)
    marginals.train(frame, DOMAIN, Privacy(1000, noise="seeded"), tmp_path, label=label)
    made = load(tmp_path)
    drawn = DOMAIN.encode(made.sample(20_000, 0))
    real = DOMAIN.encode(frame)
    for i, j in [(0, 1), (1, 3), (2, 2)]:
        table, other = (
            counts(codes[:, [i, j]], (DOMAIN.sizes[i], DOMAIN.sizes[j])) / 20_000
            for codes in (real, drawn)
        )
        assert np.abs(table - other).sum() / 2 < 0.02
    edges = {frozenset((o["column"], o["parent"])) for o in made.settings["order"]}
    assert frozenset((0, 1)) in edges
    if label is None:
        assert frozenset((1, 3)) in edges


def test_sampling_follows_the_stored_law() -> None:
    """Against the product of the conditional laws, by chi-square at level 1e-3."""
    rng = np.random.default_rng(0)
    root, given = rng.random((1, 1, 2)), rng.random((2, 3, 4))
    middle = rng.random((2, 1, 3))
    same = tuple(Groups(np.arange(k), np.ones(k)) for k in (2, 3, 4))
    network = Network((Node(0, None, root), Node(1, None, middle), Node(2, 1, given)), same, 0)
    domain = Domain.model_validate(
        {"columns": {f"k{k}": {"kind": "category", "levels": list(range(k))} for k in (2, 3, 4)}}
    )
    drawn = network.sample(domain, 40_000, np.random.default_rng(1)).to_numpy()
    law = np.array(
        [
            root[0, 0, y] / root.sum()
            * middle[y, 0, p] / middle[y].sum()
            * given[y, p, c] / given[y, p].sum()
            for y, p, c in product(range(2), range(3), range(4))
        ]
    )  # fmt: skip
    seen = counts(drawn, (2, 3, 4)).ravel()
    assert stats.chisquare(seen, law * 40_000).pvalue > 1e-3


def test_groups_hold_enough_records_and_keep_the_order() -> None:
    column = DOMAIN.columns["a"].model_copy(update={"high": 9})
    noisy = np.array([50.0, 1, -3, 2, 60, 30, 30, 1, 0, 2])
    found = grouped(column, noisy, 170.0, 40.0)
    assert (np.diff(found.of_code) >= 0).all()
    assert found.of_code.tolist() == [0, 1, 1, 1, 1, 2, 2, 2, 2, 2]
    assert np.bincount(found.of_code, found.within) == pytest.approx(1.0)
    rng = np.random.default_rng(0)
    codes = found.codes(np.full(10_000, 1), rng.random(10_000))
    share = np.bincount(codes, minlength=10) / 10_000
    assert share == pytest.approx(np.where(found.of_code == 1, found.within, 0), abs=0.02)
    category = grouped(DOMAIN.columns["c"], np.array([90.0, 80, 5, 3]), 178.0, 40.0)
    assert category.of_code.tolist() == [0, 1, 2, 2]


def test_ten_thousand_levels_are_learnt_in_groups(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    levels = [f"icd-{k:05d}" for k in range(10_000)]
    common = rng.random(5000) < 0.8
    frame = pd.DataFrame(
        {
            "code": np.where(common, rng.choice(levels[:3], 5000), rng.choice(levels, 5000)),
            "y": rng.integers(0, 2, 5000),
        }
    )
    domain = Domain.model_validate(
        {
            "columns": {
                "code": {"kind": "category", "levels": levels},
                "y": {"kind": "category", "levels": [0, 1]},
            }
        }
    )
    made = marginals.train(frame, domain, Privacy(8, noise="seeded"), tmp_path)
    share = made.generator.sample(5000, 0)["code"].isin(levels[:3]).mean()
    assert share == pytest.approx(0.8, abs=0.1)


def test_constant_columns_and_single_records_are_learnt(tmp_path: Path) -> None:
    domain = Domain.model_validate(
        {
            "columns": {
                "one": {"kind": "number", "low": 2, "high": 2},
                "only": {"kind": "category", "levels": ["k"]},
            }
        }
    )
    frame = pd.DataFrame({"one": [2.0], "only": ["k"]})
    made = marginals.train(frame, domain, Privacy(1, noise="seeded"), tmp_path / "a")
    drawn = made.generator.sample(10, 0)
    assert (drawn["one"] == 2).all()
    assert (drawn["only"] == "k").all()
    alone = marginals.train(
        frame[["only"]], Domain(columns={"only": domain.columns["only"]}), Privacy(1),
        tmp_path / "b", label="only",
    )  # fmt: skip
    assert alone.steps == 1


# --- projections -----------------------------------------------------------------------------


def test_projection_is_the_nearest_table() -> None:
    """No table of a fine grid without negative cells and with that sum lies nearer."""
    noisy = np.array([4.2, -1.0, 0.7])
    found = nonnegative(noisy, 3.0)
    assert found.sum() == pytest.approx(3)
    grid = np.linspace(0, 3, 301)
    others = [(x, y, 3 - x - y) for x in grid for y in grid if x + y <= 3]
    nearest = min(float(((np.array(o) - noisy) ** 2).sum()) for o in others)
    assert ((found - noisy) ** 2).sum() <= nearest + 1e-9


def test_raking_meets_both_margins_and_keeps_odds_ratios() -> None:
    rng = np.random.default_rng(0)
    table, target = rng.random((2, 3, 4)) + 0.1, rng.random((2, 3, 4)) + 0.1
    found = raked(table, target.sum(axis=2), target.sum(axis=1))
    assert found.sum(axis=2) == pytest.approx(target.sum(axis=2), rel=1e-6)
    assert found.sum(axis=1) == pytest.approx(target.sum(axis=1), rel=1e-6)

    def odds(t: NDArray[np.float64]) -> NDArray[np.float64]:
        return t[:, 0, 0] * t[:, 1, 1] / (t[:, 0, 1] * t[:, 1, 0])

    assert odds(found) == pytest.approx(odds(table), rel=1e-6)


def test_shrinking_pays_where_the_truth_is_independence() -> None:
    rng = np.random.default_rng(0)
    truth = np.outer([30, 70], [20, 30, 50]) / 1.0
    noisy = truth + rng.normal(0, 10, (500, 2, 3))
    lost = sum(((shrunk(n, truth, 10) - truth) ** 2).sum() for n in noisy)
    assert lost < 0.5 * ((noisy - truth) ** 2).sum()
    far = truth + 1e4 * rng.normal(size=(2, 3))
    assert shrunk(far, truth, 10) == pytest.approx(far, rel=1e-3)


def test_the_forest_is_the_best_of_all() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        scores = np.triu(rng.normal(0.3, 1, (5, 5)), 1)
        scores += scores.T
        order = forest(scores)
        seen: set[int] = set()
        for child, parent in order:
            assert parent is None or parent in seen
            seen.add(child)
        assert seen == set(range(5))
        pairs = list(combinations(range(5), 2))
        sums = [0.0]
        for size in range(1, 5):
            for some in combinations(pairs, size):
                root = list(range(5))
                for i, j in some:
                    if root[i] == root[j]:
                        break
                    root = [root[i] if r == root[j] else r for r in root]
                else:
                    sums.append(sum(scores[e] for e in some))
        found = sum(scores[c, p] for c, p in order if p is not None)
        assert found == pytest.approx(max(sums))


# --- bounds and levels that are estimated ----------------------------------------------------


def test_bounds_and_levels_are_found_from_noisy_counts(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    n = 5000
    frame = pd.DataFrame(
        {
            "x": rng.uniform(-6, 90, n),
            "k": rng.integers(18, 91, n),
            "d": pd.Timestamp("2019-03-01") + pd.to_timedelta(rng.integers(0, 900, n), unit="D"),
            "c": rng.choice(["p", "q"], n),
        }
    )
    frame.loc[0, "x"], frame.loc[0, "c"] = 1e9, "the only one"
    gaps = Domain.model_validate(
        {
            "columns": {
                "x": {"kind": "number"},
                "k": {"kind": "integer"},
                "d": {"kind": "date"},
                "c": {"kind": "category"},
            }
        }
    )
    with ledger_at(tmp_path / "l", n) as ledger:
        found = fill(gaps, frame, Measurements(ledger, seeded_noise(0), n), 0.5)
        assert ledger.steps == 1
    shown = json.loads(found.model_dump_json())["columns"]
    assert (shown["x"]["low"], shown["x"]["high"]) == (-8, 128)
    assert (shown["k"]["low"], shown["k"]["high"]) == (16, 128)
    assert (shown["d"]["low"], shown["d"]["high"]) == ("2019-01-01", "2021-12-31")
    assert shown["c"]["levels"] == ["p", "q"]
    assert shown["c"]["other"] == "other"
    assert not found.unknown


def test_a_level_of_one_record_never_passes(tmp_path: Path) -> None:
    """Its chance is 1.1e-19 a run, and its count is 20,000 times the only one of its level."""
    frame = pd.DataFrame({"c": [f"person {k}" for k in range(20_000)]})
    gaps = Domain.model_validate({"columns": {"c": {"kind": "category"}}})
    with ledger_at(tmp_path / "l", len(frame)) as ledger:
        found = fill(gaps, frame, Measurements(ledger, seeded_noise(0), len(frame)), 1.0)
    assert found.columns["c"].levels == ("other",)  # type: ignore[union-attr]


def test_the_fingerprint_knows_records_and_not_their_order() -> None:
    frame = chain(50)
    assert table_fingerprint(frame) == table_fingerprint(frame.sample(frac=1, random_state=0))
    assert table_fingerprint(frame) != table_fingerprint(frame.assign(a=0))


# --- files -----------------------------------------------------------------------------------


def test_files_that_are_no_generator_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"generator\.json: is missing"):
        load(tmp_path)
    marginals.train(chain(50), DOMAIN, Privacy(1), tmp_path)
    description, weights = tmp_path / "generator.json", tmp_path / "weights.safetensors"
    whole, text = weights.read_bytes(), description.read_text(encoding="utf-8")
    for broken in ("", "[]", "{}", text.replace("marginals", "os"), text.replace('"low": 0', "")):
        description.write_text(broken, encoding="utf-8")
        with pytest.raises(ValueError, match=r"generator\.json: is no generator"):
            load(tmp_path)
    description.write_text(text, encoding="utf-8")
    weights.write_bytes(whole[:40])
    with pytest.raises(ValueError, match=r"weights\.safetensors: cannot be read"):
        load(tmp_path)
    weights.write_bytes(whole)
    with pytest.raises(ValueError, match="records: must be at least 1"):
        load(tmp_path).sample(0)
    for settings in ([], {}, {"order": -1}, {"order": [{"column": -1}], "label": "../x"}):
        description.write_text(json.dumps(json.loads(text) | {"settings": settings}), "utf-8")
        with pytest.raises(ValueError, match="settings and weights are of no marginals generator"):
            load(tmp_path).sample(9)
    description.write_text("[" * 100_000, encoding="utf-8")
    with pytest.raises(ValueError, match=r"generator\.json: is no generator"):
        load(tmp_path)
