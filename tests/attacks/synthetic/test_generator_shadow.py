"""Shadow generators: planted leaks of known size are found, and nothing where nothing leaks."""

import sys
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import beta, binom

sys.path.insert(0, str(Path(__file__).parents[3] / "fixtures" / "synthetic"))
import generators

from attacks.metrics import auc, tpr_at_fpr
from attacks.synthetic import clustered
from attacks.synthetic.clustered import by_target, holm, least_epsilon, most_exposed, pooled
from attacks.synthetic.generator_fleet import GeneratorFleet, Observations, plan
from attacks.synthetic.generator_shadow import attack, attack_release, bound_in_words, copies

POOL = generators.population(240, 1)
SMALL = POOL[["age", "sex"]]  # where only the machinery is asked
SIZE = 120  # of a shadow generator's training set, but for the coins
TARGETS = 12
METHODS = ("logistic", "forest", "lira")


@cache
def fleet(name, times=1, runs=64, others="halves"):
    """Trained once for all tests of this file; ``times`` is how many releases are drawn."""
    generator = generators.dp_marginals(1.0) if name == "dp" else getattr(generators, name)
    return GeneratorFleet(generator, times * SIZE, runs, others=others)


def figures(result):
    return {figure.name: figure.estimate for figure in result.figures}


@pytest.mark.parametrize("method", METHODS)
def test_of_a_bootstrap_no_attack_finds_more_than_what_was_drawn(method):
    """A record is in the table with probability 1 - (1 - 1/n)^m, and else leaves no trace."""
    found = figures(attack(fleet("bootstrap"), POOL, TARGETS, method=method))["auc"]
    drawn = 1 - (1 - 1 / SIZE) ** SIZE
    assert found.low <= 0.5 + drawn / 2 <= found.high
    assert found.low > 0.6


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["bootstrap", "kernel_density"])
def test_many_releases_of_a_memoriser_give_members_away(name, method):
    """Three releases hold 95 % of the members: an AUC of 0.975 at best."""
    result = attack(fleet(name, 3), POOL, TARGETS, method=method)
    found = figures(result)
    assert found["auc"].low > 0.9
    assert found["tpr_at_fpr_0.1"].low > 0.85
    assert result.bound.epsilon > 1
    assert result.models_trained == 64
    assert (result.rows["p_holm"] < 0.01).all()


def test_scaling_to_raw_extremes_is_found():
    """The range tells of the most extreme records alone: the worst target shows it best."""
    result = attack(fleet("public_extremes"), POOL, TARGETS, method="forest")
    assert figures(result)["auc_most_exposed"].low > 0.6
    assert result.rows["p_holm"].min() < 0.01


def test_honest_marginals_leak_where_the_attacker_knows_all_others():
    """Five releases of exact marginals, without DP: enough for one who knows the rest."""
    found = figures(attack(fleet("marginals", 5, others="fixed"), POOL, TARGETS))
    assert found["auc"].low > 0.55


def test_differential_privacy_at_one_is_at_chance():
    """Of pure ε = 1 no attack has an AUC above 0.731; Laplace noise on 5 columns leaves about .53.

    The bound may not exceed the true ε; it does so in 5 % of audits at most.
    """
    for others in ("halves", "fixed"):
        result = attack(fleet("dp", others=others), POOL, TARGETS)
        found = figures(result)
        assert found["auc"].low <= 0.5 <= found["auc"].high
        assert found["auc"].high < 0.731
        assert result.bound.epsilon is None or result.bound.epsilon <= 1
        assert (result.rows["p_holm"] > 0.001).all()


class Redrawn(GeneratorFleet):
    """Tables of a generator that looks at no record, with new coins: as good as trained anew."""

    def observations(self, pool, targets, progress=None):
        seen = fleet("ignores").observations(pool, targets)
        inside = plan(len(pool), targets, self.runs, self.seed)[:, targets]
        return Observations(inside, seen.whole, seen.near, seen.influence)


def test_where_nothing_leaks_no_more_is_found_than_stated(monkeypatch):
    """40 audits: the AUC's interval misses 0.5, a target is found, or an ε, in 5 % each at most.

    Chance brings more of any than allowed here in 1 of 1000 such tests.
    """
    monkeypatch.setattr(clustered, "REPLICATES", 400)
    misses = np.zeros(4, dtype=int)
    for seed in range(1, 41):
        blind = Redrawn(generators.ignores, SIZE, 64, seed)
        result = attack(
            blind,
            POOL,
            TARGETS,
            method="forest" if seed % 10 == 0 else METHODS[seed % 2 * 2],
            seed=seed,
        )
        found = figures(result)
        misses += [
            not found["auc"].low <= 0.5 <= found["auc"].high,
            not found["auc_most_exposed"].low <= 0.5,
            result.rows["p_holm"].min() < 0.05,
            result.bound.epsilon is not None,
        ]
    assert misses.max() <= binom.ppf(0.999, 40, 0.05), misses


def test_nothing_found_is_not_an_epsilon_of_zero():
    bound = attack(fleet("ignores"), POOL, TARGETS).bound
    assert bound.epsilon is None
    assert bound.most > 1
    assert bound_in_words(bound).startswith("no evidence of any ε")
    assert "16 pairs of runs can show" in bound_in_words(bound)


@pytest.mark.parametrize("method", METHODS)
def test_one_release_is_scored_target_by_target(method):
    members = np.random.default_rng(5).random(len(POOL)) < 0.5
    release = generators.bootstrap(POOL[members], 3 * SIZE, 77)
    result = attack_release(
        fleet("bootstrap", 3), POOL, release, TARGETS, members=members, method=method
    )
    found = figures(result)["auc"]
    assert found.low > 0.5
    assert found.value > 0.9
    assert np.array_equal(result.rows["member"], members[result.rows["target"]])
    blind = attack_release(fleet("bootstrap", 3), POOL, release, TARGETS, method=method)
    assert np.array_equal(blind.rows["score"], result.rows["score"])
    assert blind.figures[0].estimate is None


def test_targets_are_the_most_vulnerable_or_those_named():
    chosen = attack(fleet("bootstrap"), POOL, TARGETS)
    assert (np.diff(chosen.rows["isolation"]) <= 0).all()
    named = attack(GeneratorFleet(copies, 50, 16), POOL, [3, 1, 4])
    assert named.rows["target"].tolist() == [3, 1, 4]


def test_each_pair_trains_with_and_without_every_target():
    targets = np.array([5, 0, 9])
    inside = plan(31, targets, 200, 2)
    assert (inside[0::2] != inside[1::2]).all()
    coins = inside[0::2][:, targets]
    assert 0 < coins.mean() < 1
    assert len(np.unique(coins, axis=0)) == 8  # targets do not go together
    fixed = plan(31, targets, 200, 2, "fixed")
    rest = np.setdiff1d(np.arange(31), targets)
    assert fixed[:, rest].all()
    assert np.array_equal(fixed[:, targets], inside[:, targets])


def test_generators_see_the_records_of_the_plan_and_nothing_else():
    seen = []

    def spy(training, records, seed):
        seen.append((training, records, seed))
        return copies(training, records, seed)

    targets = np.array([2, 8])
    GeneratorFleet(spy, 40, 4, seed=3).observations(POOL, targets)
    inside = plan(len(POOL), targets, 4, 3)
    assert len({seed for _, _, seed in seen}) == 4
    for row, (training, records, _) in zip(inside, seen, strict=True):
        assert records == 40
        pd.testing.assert_frame_equal(training, POOL[row].reset_index(drop=True))


class Counting:
    """Counts its trainings, and may be interrupted."""

    def __init__(self, stop_at=None):
        self.stop_at, self.trained = stop_at, 0

    def __call__(self, training, records, seed):
        if self.trained == self.stop_at:
            raise KeyboardInterrupt
        self.trained += 1
        return copies(training, records, seed)


def same(one, other):
    return all(np.array_equal(one.rows[n], other.rows[n], equal_nan=True) for n in one.rows) and (
        one.figures == other.figures and one.bound == other.bound
    )


def test_a_seed_decides_everything():
    fleets = [GeneratorFleet(copies, 40, 16, seed) for seed in (0, 0, 1)]
    for method in METHODS:
        results = [attack(one, SMALL, [1, 2], method=method) for one in fleets]
        assert same(*results[:2])
        assert not same(results[0], results[2])


def test_processes_give_what_one_gives():
    one, two = (attack(GeneratorFleet(copies, 40, 16, workers=n), SMALL, [1, 2]) for n in (1, 2))
    assert same(one, two)


def test_an_interrupted_fleet_resumes(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        attack(GeneratorFleet(Counting(5), 40, 16, folder=tmp_path, recipe="b"), SMALL, [1, 2])
    assert len(list(tmp_path.iterdir())) == 5
    counting, calls = Counting(), []
    resumed = attack(
        GeneratorFleet(counting, 40, 16, folder=tmp_path, recipe="b"),
        SMALL,
        [1, 2],
        progress=lambda done, total: calls.append((done, total)),
    )
    assert counting.trained == 11
    assert calls == [(k, 16) for k in range(5, 17)]
    assert same(resumed, attack(GeneratorFleet(Counting(), 40, 16), SMALL, [1, 2]))


@pytest.mark.parametrize("change", ["recipe", "seed", "records", "pool", "targets", "others"])
def test_runs_of_another_configuration_are_not_reused(tmp_path, change):
    first = {"records": 40, "runs": 4, "folder": tmp_path, "recipe": "b"}
    GeneratorFleet(Counting(), **first).observations(SMALL, np.array([1, 2]))
    pool, targets, other = SMALL, np.array([1, 2]), {}
    match change:
        case "pool":
            pool = SMALL.assign(age=SMALL["age"] + 1e-9)
        case "targets":
            targets = np.array([2, 1])
        case "others":
            other = {"others": "fixed"}
        case _:
            other = {change: {"recipe": "c", "seed": 1, "records": 41}[change]}
    counting = Counting()
    GeneratorFleet(counting, **(first | other)).observations(pool, targets)
    assert counting.trained == 4


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"garbage" * 9),
        lambda path: path.write_bytes(path.read_bytes()[:-8]),
        lambda path: np.save(path, np.load(path)[:-1]),
        lambda path: np.save(path, np.load(path) * np.nan),
        lambda path: np.save(path, np.array([{}]), allow_pickle=True),
    ],
    ids=["empty", "garbage", "truncated", "short", "NaN", "pickle"],
)
def test_a_damaged_run_is_trained_again(tmp_path, damage):
    options = {"records": 40, "runs": 4, "folder": tmp_path, "recipe": "b"}
    whole = GeneratorFleet(Counting(), **options).observations(SMALL, np.array([1, 2]))
    damage(sorted(tmp_path.iterdir())[2])
    counting = Counting()
    again = GeneratorFleet(counting, **options).observations(SMALL, np.array([1, 2]))
    assert counting.trained == 1
    assert np.array_equal(whole.near["distance"], again.near["distance"])


def returns(change):
    return lambda training, records, seed: change(copies(training, records, seed))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.to_numpy(), "table: is a ndarray; return a pandas DataFrame"),
        (lambda t: t.drop(columns="age"), "table: lacks 'age', unlike pool"),
        (lambda t: t.assign(more=1), "table: has 'more', unlike pool"),
        (lambda t: t.assign(age=np.inf), "table: column 'age', record 0: is infinite"),
        (lambda t: t.assign(age="old"), "table: column 'age' holds text"),
        (lambda t: t.head(30), "table: 30 records, asked for 40"),
        (lambda t: t.head(0), "table: holds no records"),
    ],
)
def test_a_table_that_cannot_be_used_names_its_run(change, message):
    with pytest.raises(ValueError, match="^shadow generator 0: " + message) as error:
        attack(GeneratorFleet(returns(change), 40, 16), POOL, [1, 2])
    assert "\n" not in str(error.value)


def test_levels_that_the_pool_lacks_and_other_column_orders_are_no_error():
    new = returns(lambda t: t.assign(region="moon")[t.columns[::-1]])
    seen = GeneratorFleet(new, 40, 4).observations(POOL, np.array([1, 2]))
    assert (seen.near["matches"][:, :, 1] == 0).all()  # nobody agrees in every column


@pytest.mark.parametrize(
    ("options", "arguments", "message"),
    [
        ({"runs": 14}, {}, "runs: need an even number of 16 or more, got 14"),
        ({"runs": 17}, {}, "runs: need an even number of 16 or more, got 17"),
        ({"records": 9}, {}, "records: 9 are too few; ask for 10 or more"),
        ({"others": "none"}, {}, "others: 'none' is neither halves nor fixed"),
        ({"folder": Path("x")}, {}, "recipe: missing"),
        ({"workers": 0}, {}, "workers: 0 can train nothing"),
        ({}, {"targets": [1, 1]}, "targets: name one or more rows of the pool, each once"),
        ({}, {"targets": []}, "targets: name one or more rows of the pool, each once"),
        ({}, {"targets": [240]}, "targets: row 240 is none of the pool's 240"),
        ({}, {"targets": [-1]}, "targets: row -1 is none of the pool's 240"),
        ({}, {"targets": 0}, "targets: asked for 0"),
        ({}, {"families": ["naive", "new"]}, "families: 'new' is none of naive, range"),
        ({}, {"families": []}, "families: name one or more, each once"),
        ({}, {"method": "best"}, "method: 'best' is none of logistic, forest, lira"),
        ({}, {"delta": 1.0}, r"delta: must lie in \[0, 1\), got 1.0"),
    ],
)
def test_bad_input_is_said_in_one_line(options, arguments, message):
    whole = {"generator": copies, "records": 40, "runs": 16} | options
    asked = {"targets": [1, 2]} | arguments
    with pytest.raises(ValueError, match=message) as error:
        attack(GeneratorFleet(**whole), POOL, **asked)
    assert "\n" not in str(error.value)


def test_a_release_that_does_not_suit_the_fleet_is_refused():
    small = GeneratorFleet(copies, 40, 16)
    with pytest.raises(ValueError, match="release: 39 records, the shadow generators make 40"):
        attack_release(small, POOL, POOL.head(39), [1, 2])
    with pytest.raises(ValueError, match="release: lacks 'age'"):
        attack_release(small, POOL, POOL.head(40).drop(columns="age"), [1, 2])
    with pytest.raises(ValueError, match="members: "):
        attack_release(small, POOL, POOL.head(40), [1, 2], members=np.ones(3, bool))


@pytest.mark.parametrize("method", METHODS)
def test_columns_that_are_constant_repeated_empty_or_dates_do_no_harm(method):
    pool = SMALL.assign(
        same=1,
        again=SMALL["age"],
        nothing=None,
        day=pd.date_range("2020-01-01", periods=len(SMALL)),
        code=[f"code {i}" for i in range(len(SMALL))],
    )
    pool.loc[::5, "again"] = np.nan
    result = attack(GeneratorFleet(copies, 360, 16), pool, 10, method=method)
    assert figures(result)["auc"].value > 0.9
    assert all(np.isfinite(column).all() for column in result.rows.values())


@pytest.mark.parametrize("family", ["naive", "histogram", "correlation", "distance", "matches"])
def test_every_family_alone_sees_a_memoriser(family):
    """Three releases of a memoriser; a family that sees nothing would pass in 1 of 40 tries."""
    result = attack(fleet("bootstrap", 3), POOL, TARGETS, families=[family])
    assert figures(result)["auc"].low > 0.5


# figures of scores that share targets and runs


def test_pooled_values_are_those_of_all_scores_together():
    rng = np.random.default_rng(0)
    inside, outside = rng.normal(1, 1, (30, 8)).round(1), rng.normal(0, 1, (30, 8)).round(1)
    found = pooled(inside, outside)
    plain = [auc(inside, outside), tpr_at_fpr(inside.ravel(), outside.ravel(), 0.1).estimate]
    plain.append(tpr_at_fpr(inside.ravel(), outside.ravel(), 0.01).estimate)
    for figure, one in zip(found, plain, strict=True):
        assert figure.estimate.value == one.value
        assert figure.estimate.low <= one.low
        assert figure.estimate.high >= one.high


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("cells", [4_000_000, 3000])
def test_replicates_are_the_figures_of_what_was_drawn(monkeypatch, axis, cells):
    monkeypatch.setattr(clustered, "CELLS", cells)
    monkeypatch.setattr(clustered, "REPLICATES", 40)
    rng = np.random.default_rng(0)
    inside, outside = rng.normal(1, 1, (15, 20)).round(1), rng.normal(0, 1, (15, 20)).round(1)
    found = clustered._replicates(inside, outside, np.random.default_rng(5), axis)
    again, count = np.random.default_rng(5), inside.shape[axis]
    for row in found:
        rows = np.repeat(np.arange(count), again.multinomial(count, np.full(count, 1 / count)))
        a, b = np.take(inside, rows, axis).ravel(), np.take(outside, rows, axis).ravel()
        rates = [tpr_at_fpr(a, b, fpr).estimate.value for fpr in clustered.FPRS]
        assert row == pytest.approx([auc(a, b).value, *rates])


def test_what_targets_or_runs_share_widens_the_interval():
    """All 10 targets the same in each run, or all 30 runs the same for each target."""
    rng = np.random.default_rng(1)
    alone = pooled(rng.normal(0.5, 1, (30, 10)), rng.normal(0, 1, (30, 10)))[0].estimate
    for shape in ((30, 1), (1, 10)):
        run_in, run_out = rng.normal(0.5, 1, shape), rng.normal(0, 1, shape)
        shared = pooled(
            run_in + rng.normal(0, 0.01, (30, 10)), run_out + rng.normal(0, 0.01, (30, 10))
        )[0].estimate
        assert shared.high - shared.low > 2 * (alone.high - alone.low)


@pytest.mark.slow
def test_intervals_cover_the_truth_with_shared_runs_and_targets():
    """300 draws: runs and targets each add half of a score's noise. 5 % may miss; 9 % would show.

    A rate of 9 % passes in 1 of 50, one of 5 % fails in 1 of 200.
    """
    rng = np.random.default_rng(2)
    misses = 0
    for seed in range(300):
        target = rng.normal(0, 0.5, 16)
        inside, outside = (
            target + rng.normal(0, 0.5, (32, 1)) + rng.normal(0, 1, (32, 16)) for _ in range(2)
        )
        found = pooled(inside, outside, seed=seed)[0].estimate
        misses += not found.low <= 0.5 <= found.high
    assert misses <= binom.ppf(0.995, 300, 0.05)


def test_holm_is_that_of_the_paper():
    """Holm 1979: 0.01, 0.04, 0.03, 0.005 become 4 · 0.005, 3 · 0.01, 2 · 0.03, and no less."""
    found = holm(np.array([0.01, 0.04, 0.03, 0.005]))
    assert found == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_the_worst_target_pays_for_all():
    rng = np.random.default_rng(3)
    inside, outside = rng.normal(0, 1, (30, 6)), rng.normal(0, 1, (30, 6))
    inside[:, 4] += 2
    row, found = most_exposed(inside, outside, np.arange(10, 16))
    areas, p = by_target(inside, outside)
    assert row == 14
    assert found.value == areas[4].value
    assert found.low < areas[4].low
    assert p.argmin() == 4


def answers(epsilon, pairs, targets, rng):
    """Scores 0 and 1 of randomised response: exactly ε-DP, and nothing is tighter."""
    right = np.exp(epsilon) / (1 + np.exp(epsilon))
    return tuple((rng.random((pairs, targets)) < p).astype(float) for p in (right, 1 - right))


def test_the_bound_is_the_formula():
    rng = np.random.default_rng(4)
    inside, outside = answers(2.0, 200, 1, rng)
    bound = least_epsilon((inside, outside), (inside, outside), np.array([9]), delta=0.01)
    hits, alarms = int(inside.sum()), int(outside.sum())
    if bound.tail == "out":
        hits, alarms = 200 - alarms, 200 - hits
    low = beta.ppf(0.025, hits, 200 - hits + 1)
    high = beta.ppf(0.975, alarms + 1, 200 - alarms)
    assert (bound.hits, bound.false_alarms, bound.pairs, bound.target) == (hits, alarms, 200, 9)
    assert bound.epsilon == pytest.approx(np.log((low - 0.01) / high))
    assert bound.most == pytest.approx(
        np.log((0.025 ** (1 / 200) - 0.01) / (1 - 0.025 ** (1 / 200)))
    )


def test_the_bound_exceeds_the_true_epsilon_no_oftener_than_stated():
    """200 audits of randomised response at ε = 1, 20 targets; more than allowed: 1 in 1000."""
    rng = np.random.default_rng(6)
    bounds = []
    for _ in range(200):
        chosen, counted = (answers(1.0, 60, 20, rng) for _ in range(2))
        bound = least_epsilon(chosen, counted, np.arange(20)).epsilon
        bounds.append(0.0 if bound is None else bound)
    assert np.sum(np.array(bounds) > 1.0) <= binom.ppf(0.999, 200, 0.05)
    assert np.median(bounds) > 0.2  # and it is of use


def test_a_leak_that_lowers_the_score_is_counted_as_well():
    rng = np.random.default_rng(7)
    inside, outside = rng.normal(-6, 1, (40, 3)), rng.normal(0, 1, (40, 3))
    bound = least_epsilon((inside, outside), (inside, outside), np.arange(3))
    assert bound.epsilon is None  # score rules say "member above", on either side of a threshold
    found = pooled(inside, outside)[0].estimate
    assert found.high < 0.05
