"""Two targets whose best attack is known in closed form, and attacks that must reach it.

Every interval is taken at 99.9 % confidence, so an attack that is at the optimum misses it by
chance in 1 of 1000 comparisons; there are 35, not independent. Attacks that learn from 64 shadow
models lie a little below (by 0.001 to 0.007 of AUC here). Seeds are fixed.
"""

import numpy as np
import pytest
from scipy.stats import binom, norm
from sklearn.neighbors import KNeighborsClassifier, NearestNeighbors

from attacks import registry
from attacks.metrics import auc, tpr_at_fpr
from attacks.records import Membership, Records
from attacks.shadows.fleet import Shadows
from attacks.targets import from_callable

CONFIDENCE = 0.999
SHADOWS = 64
BLIND_TO_OTHERS = ("loss_threshold",)
KNOWS_THE_POOL = (
    "lira",
    "lira_fixed",
    "lira_offline",
    "lira_offline_fixed",
    "rmia",
    "rmia_offline",
)


def split(X, y):
    """The first half of the records are members; they were drawn at random."""
    n = len(y) // 2
    ids = np.arange(2 * n)
    members, others = (Records(X[i], y[i], ids[i]) for i in (ids[:n], ids[n:]))
    return Membership(members, others, np.unique(y), "randomised")


def scores_of(names, records, fit):
    target = fit(records.members.features, records.members.labels, 0)
    shadows = Shadows(fit, SHADOWS)
    results = {name: registry.run(name, target, records, shadows=shadows) for name in names}
    return {name: (r.member_scores, r.non_member_scores) for name, r in results.items()}


# A. A Gaussian mean estimator.


def hebbian(X, y, seed):
    """Publishes the mean m of z = y x and answers with logits (-<x, m>, <x, m>), made small.

    The smallness (a temperature) is for RMIA, which compares probabilities: where the softmax is
    linear in the logits, their ratio orders records as the difference of the logits does.
    """
    m = 0.01 * (y[:, None] * X).mean(axis=0)
    return from_callable(lambda rows: np.c_[-(rows @ m), rows @ m], [-1, 1], "logits", "logits")


def sphere(records, d, rng):
    """Records on the sphere of radius sqrt(d), labels by a coin."""
    x = rng.normal(size=(records, d))
    x *= np.sqrt(d) / np.linalg.norm(x, axis=1, keepdims=True)
    return x, rng.choice([-1, 1], records)


def best_auc(separation):
    return norm.cdf(separation / np.sqrt(2))


def best_tpr(separation, fpr):
    return norm.cdf(separation - norm.isf(fpr))


def separation_alone(n, d):
    """How many standard deviations <z, m> lies higher for a member, for who knows z and m alone.

    All z have one length, and the law of m is the same in every direction. So the likelihood ratio
    of m with and without z depends on <z, m> alone, and grows with it. For two records
    <z_i, z_j> has mean 0 and variance d, hence <z, m> is N(d / n, d (n - 1) / n^2) for one of the
    n members and N(0, d / n) for others. Two approximations: the variances' ratio 1 - 1 / n is
    taken as 1, and the sum of n terms, each of excess kurtosis -6 / (d + 2), as normal.
    """
    return np.sqrt(d / n)


def separation_in_pool(n, d):
    """The same for who knows the 2 n records of which a random half are the members.

    They ask the target for the record's own <z, m> only, as all attacks here do. Then only the
    choice of the half is random. Of the 2 n - 1 products of z with the other records, n - 1 are
    summed for a member and n for a non-member. By sampling without replacement both sums have
    variance n (n - 1) / (2 n - 1) S^2, where S^2, their variance in this pool, is d within a factor
    1 +- sqrt(1 / n); the means differ by d - a, where a, the products' mean, is of size
    sqrt(d / 2 n). Half of the noise is gone, so the separation is larger by sqrt(2). Taken as 1:
    (2 n - 1) / (2 n - 2), 1 - a / d, and S^2 / d, whose scatter over records averages out.
    """
    return np.sqrt(2 * d / n)


def statistic(n, d, seed):
    """<z, m> of members and non-members, and the same less the mean over the pool."""
    x, y = sphere(2 * n, d, np.random.default_rng(seed))
    z = y[:, None] * x
    alone = z @ z[:n].mean(axis=0)
    in_pool = alone - z @ z.mean(axis=0)
    return (alone[:n], alone[n:]), (in_pool[:n], in_pool[n:])


N = D = 1000


def test_the_closed_forms_of_the_mean_are_those_of_the_statistic_itself():
    """40 pools of 600 records: the mean over pools lies within 3.3 standard errors (1 in 1000).

    The standard errors are 0.003 for AUC and 0.007 for TPR. 600 pools gave AUCs 0.0006 and 0.0004
    below the closed forms, within their standard errors of 0.0007 and 0.0005; so that is how small
    the approximations are. There the 95 % intervals covered the closed form in 97 to 99 %: scores
    share one m, which varies less than as many independent scores would.
    """
    found = [statistic(300, 300, seed) for seed in range(40)]
    for k, separation in enumerate((separation_alone(300, 300), separation_in_pool(300, 300))):
        areas = [auc(*sides[k]).value for sides in found]
        rates = [np.mean(sides[k][0] > np.quantile(sides[k][1], 0.9)) for sides in found]
        for values, truth in ((areas, best_auc(separation)), (rates, best_tpr(separation, 0.1))):
            assert abs(np.mean(values) - truth) < 3.3 * np.std(values, ddof=1) / np.sqrt(40)


@pytest.fixture(scope="module")
def of_the_mean():
    X, y = sphere(2 * N, D, np.random.default_rng(1))
    return scores_of(BLIND_TO_OTHERS + KNOWS_THE_POOL, split(X, y), hebbian)


@pytest.mark.parametrize("name", BLIND_TO_OTHERS + KNOWS_THE_POOL)
def test_the_mean_gives_away_what_it_must(of_the_mean, name):
    """AUC and TPR at 10 and 1 % FPR at the optimum of those who know as much as this attack."""
    known = separation_in_pool if name in KNOWS_THE_POOL else separation_alone
    area = auc(*of_the_mean[name], CONFIDENCE)
    assert area.low <= best_auc(known(N, D)) <= area.high
    for fpr in (0.1, 0.01):
        rate = tpr_at_fpr(*of_the_mean[name], fpr, CONFIDENCE).estimate
        assert rate.low <= best_tpr(known(N, D), fpr) <= rate.high


def test_the_loss_alone_falls_short_of_who_knows_the_pool(of_the_mean):
    """So the comparisons above can tell the two optima apart."""
    assert auc(*of_the_mean["loss_threshold"], CONFIDENCE).high < best_auc(separation_in_pool(N, D))
    assert auc(*of_the_mean["lira"], CONFIDENCE).low > best_auc(separation_alone(N, D))


# B. A nearest neighbour that knows its records by heart, and labels that are noise.

CLASSES = 4


def memoriser(X, y, seed):
    """The label of the nearest training record, with certainty: all it tells is right or wrong."""
    model = KNeighborsClassifier(1).fit(X, y)
    return from_callable(model.predict_proba, model.classes_, "scores")


def right_by_luck(X, y, neighbours=40):
    """q (2n,): how likely a record is called rightly if it is not in the random half.

    The nearest of its neighbours that is in the half decides, which is the j-th with probability
    about 2^-j; exactly, n of the 2 n - 1 others are drawn without replacement. Neighbours after
    the 40th decide with probability 2^-40.
    """
    n = len(y) // 2
    near = NearestNeighbors(n_neighbors=neighbours + 1).fit(X).kneighbors(X)[1][:, 1:]
    j = np.arange(neighbours)
    none_before = np.cumprod(np.r_[1.0, (n - 1 - j[:-1]) / (2 * n - 1 - j[:-1])])
    decides = none_before * n / (2 * n - 1 - j)
    return (y[near] == y[:, None]) @ decides


def optimum(q):
    """The AUC of the likelihood ratio, and a function that gives its TPR at an FPR.

    A member is always called rightly, another record with probability q. So the ratio is 1 / q for
    a right answer and 0 for a wrong one. A non-member ranks below a member if it is called wrongly
    (1 - q), or rightly and its q is the larger.
    """
    values, at, count = np.unique(q, return_inverse=True, return_counts=True)
    below = (np.cumsum(count) - count / 2)[at] / len(q)  # share of smaller q, ties by half
    fpr, tpr = np.cumsum(values * count) / len(q), np.cumsum(count) / len(q)
    return float(np.mean(1 - q + q * below)), lambda rate: tpr[fpr <= rate].max(initial=0.0)


def noise(records, seed):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(records, 5)), rng.integers(0, CLASSES, records)


def test_the_luck_of_non_members_is_what_the_neighbours_say():
    """400 random halves of 200 records: right answers of non-members against q, 1 in 1000."""
    X, y = noise(200, 3)
    q, rng = right_by_luck(X, y), np.random.default_rng(4)
    right, asked = np.zeros(200), np.zeros(200)
    for _ in range(400):
        inside = np.zeros(200, dtype=bool)
        inside[rng.permutation(200)[:100]] = True
        answer = memoriser(X[inside], y[inside], 0).predict_labels(X)
        assert (answer[inside] == y[inside]).all()
        right += ~inside & (answer == y)
        asked += ~inside
    tail = 0.001 / 200 / 2
    assert (right >= binom.ppf(tail, asked, q)).all()
    assert (right <= binom.ppf(1 - tail, asked, q)).all()


@pytest.fixture(scope="module")
def of_the_memoriser():
    X, y = noise(4000, 5)
    names = ("label_gap", *BLIND_TO_OTHERS, *KNOWS_THE_POOL)
    return right_by_luck(X, y), scores_of(names, split(X, y), memoriser)


@pytest.mark.parametrize("name", KNOWS_THE_POOL)
def test_a_memoriser_gives_away_what_it_must(of_the_memoriser, name):
    """The optimum of all attackers who see right or wrong and know the pool, neighbours included.

    AUC, and TPR at 10 % FPR. Below that, records decide whose q is less than 1/32, and 32 models
    without the record cannot tell such q apart.
    """
    q, scores = of_the_memoriser
    best, rate_at = optimum(q)
    area = auc(*scores[name], CONFIDENCE)
    assert area.low <= best <= area.high
    rate = tpr_at_fpr(*scores[name], 0.1, CONFIDENCE).estimate
    assert rate.low <= rate_at(0.1) <= rate.high


@pytest.mark.parametrize("name", ["label_gap", *BLIND_TO_OTHERS])
def test_who_sees_only_right_or_wrong_gets_no_further(of_the_memoriser, name):
    """Without neighbours all right answers are alike: AUC 1 - mean(q) / 2, about 1 - 1 / 2C."""
    q, scores = of_the_memoriser
    area = auc(*scores[name], CONFIDENCE)
    assert area.low <= 1 - q.mean() / 2 <= area.high
    assert abs(q.mean() - 1 / CLASSES) < 0.02
