"""Train on synthetic, test on real: against scikit-learn's figures and planted losses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binomtest
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.metrics import r2_score, roc_auc_score

from attacks.synthetic.tables import code
from audit.quality import utility
from audit.quality.utility import Utility, compare_utility
from reports.record import Interval


def draw(n: int, seed: int, classes: int = 2) -> pd.DataFrame:
    random = np.random.default_rng(seed)
    frame = pd.DataFrame(random.normal(size=(n, 3)), columns=list("abc"))
    score = frame.a + frame.b + random.normal(size=n)
    if classes:
        cuts = np.quantile(score, np.linspace(0, 1, classes + 1)[1:-1])
        frame["y"] = np.array(list("uvwxyz"))[np.searchsorted(cuts, score)]
    else:
        frame["y"] = score
    return frame


def compared(real: Any, synthetic: Any, holdout: Any, label: str = "y") -> Utility:
    tables = code({"real": real, "synthetic": synthetic, "holdout": holdout})
    return compare_utility(tables, "real", "synthetic", "holdout", label)


def figure(found: Utility, name: str) -> Interval:
    (interval,) = [m.interval for m in found.figures if m.name == name]
    assert interval is not None
    return interval


@pytest.mark.parametrize("classes", [2, 3])
def test_aucs_are_scikit_learns(classes: int) -> None:
    real, synthetic, holdout = draw(300, 0, classes), draw(300, 1, classes), draw(200, 2, classes)
    found = compared(real, synthetic, holdout)
    for name, train in (("auc_real", real), ("auc_synthetic", synthetic)):
        model = HistGradientBoostingClassifier(random_state=0).fit(train[list("abc")], train.y)
        said = model.predict_proba(holdout[list("abc")])
        if classes == 2:
            truth = roc_auc_score(holdout.y == "v", said[:, 1])
        else:
            each = [roc_auc_score(holdout.y == c, said[:, k]) for k, c in enumerate("uvw")]
            truth = np.mean(each)
        assert figure(found, name).value == pytest.approx(truth)
    loss = figure(found, "auc_real").value - figure(found, "auc_synthetic").value
    assert figure(found, "auc_loss").value == pytest.approx(loss)
    assert (found.task, found.trained_real, found.tested) == ("classes", 300, 200)


def test_r2_is_scikit_learns() -> None:
    real, synthetic, holdout = draw(300, 0, 0), draw(300, 1, 0), draw(200, 2, 0)
    found = compared(real, synthetic, holdout)
    model = HistGradientBoostingRegressor(random_state=0).fit(real[list("abc")], real.y)
    truth = r2_score(holdout.y, model.predict(holdout[list("abc")]))
    assert found.task == "number"
    assert figure(found, "r2_real").value == pytest.approx(truth)
    assert figure(found, "r2_loss").low < 0 < figure(found, "r2_loss").high


def test_labels_that_lost_their_meaning_cost_all_there_is() -> None:
    real, synthetic, holdout = draw(600, 0), draw(600, 1), draw(1000, 2)
    synthetic["y"] = synthetic.y.sample(frac=1, random_state=0).to_numpy()
    loss = figure(compared(real, synthetic, holdout), "auc_loss")
    assert loss.low > 0.2
    reversed_ = draw(600, 1).assign(y=lambda f: f.y.map({"u": "v", "v": "u"}))
    assert figure(compared(real, reversed_, holdout), "auc_loss").low > 0.5


def test_the_paired_interval_covers_the_loss_of_two_given_models() -> None:
    """Two fixed scores with a known AUC each, tested on fresh records. Promised 95 %; 80 seeds."""
    rng = np.random.default_rng(0)

    def scored(n: int) -> tuple[list[Any], Any]:
        truth = (rng.random(n) < 0.4).astype(float)
        shared = truth + rng.normal(size=n)
        scores = [shared, shared + 0.7 * rng.normal(size=n)]
        return [np.column_stack([-s, s]) for s in scores], truth

    population = utility._aucs(*scored(200_000), np.random.default_rng(0), replicates=0)[0]
    expected = population[0] - population[1]
    hits = 0
    for seed in range(80):
        values, draws = utility._aucs(*scored(150), np.random.default_rng(seed), replicates=200)
        loss = utility._figures("auc", values, draws, 0.0, 0.95, 150)[2].interval
        hits += loss is not None and loss.low <= expected <= loss.high
    assert binomtest(hits, 80, 0.95, alternative="less").pvalue > 0.001


def test_a_perfect_model_keeps_an_interval_with_width() -> None:
    def easy(seed: int) -> pd.DataFrame:
        random = np.random.default_rng(seed)
        return pd.DataFrame({"a": random.normal(size=200)}).assign(y=lambda f: f.a > 0)

    found = compared(easy(0), easy(1), easy(2).loc[lambda f: f.a.abs() > 0.3])
    assert figure(found, "auc_real").value == 1
    assert figure(found, "auc_real").low < 1
    assert figure(found, "auc_loss").low < 0 < figure(found, "auc_loss").high


def test_nothing_to_learn_is_nothing_to_lose() -> None:
    frames = [draw(200, seed).assign(y=list("uv") * 100) for seed in range(3)]
    metric = compared(*frames).figures[2]
    assert metric.interval is None
    assert "no more than chance" in metric.unmeasured


def test_a_class_that_the_release_lacks_costs() -> None:
    real, holdout = draw(600, 0, 3), draw(600, 2, 3)
    synthetic = draw(900, 1, 3).loc[lambda f: f.y != "w"]
    found = compared(real, synthetic, holdout)
    assert figure(found, "auc_loss").low > 0.05
    only = draw(600, 1, 3).assign(y="u")
    assert figure(compared(real, only, holdout), "auc_synthetic").value == 0.5


def test_numbers_of_few_values_are_classes_and_strange_ones_are_left_out() -> None:
    frames = [draw(200, s).assign(y=lambda f: (f.y == "v").astype(float)) for s in range(3)]
    frames[1].loc[:9, "y"] = 0.5
    frames[0].loc[:4, "y"] = np.nan
    found = compared(*frames)
    assert (found.task, found.trained_real, found.trained_synthetic) == ("classes", 195, 190)
    assert len(found.notes) == 2
    assert found.notes[1] == "synthetic: 10 records have no label that real records have"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda r, s, h: (r, s.head(49), h), "synthetic: 49 records with a label"),
        (lambda r, s, h: (r, s, h.assign(y="u")), "holdout: the label has one value"),
        (lambda r, s, h: (r.assign(y="u"), s, h), "real: the label has one value"),
        (lambda r, s, h: tuple(f[["y"]] for f in (r, s, h)), "no column but the label"),
    ],
)
def test_what_cannot_be_measured_says_why(change: Any, said: str) -> None:
    found = compared(*change(draw(100, 0), draw(100, 1), draw(100, 2)))
    assert all(m.interval is None and said in m.unmeasured for m in found.figures)


def test_a_label_must_be_a_column_of_classes_or_numbers() -> None:
    many = [f"level {i}" for i in range(60)]
    frames = [draw(60, s).assign(d=pd.Timestamp("2020-01-01"), e=many) for s in range(3)]
    with pytest.raises(ValueError, match="no column 'z'; there are"):
        compared(*frames, label="z")
    with pytest.raises(ValueError, match="'e' has 60 classes"):
        compared(*frames, label="e")
    with pytest.raises(ValueError, match="holds dates"):
        compared(*frames, label="d")
