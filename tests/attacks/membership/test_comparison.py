"""Shadow models that play the target show what the target would, and nothing of who was in."""

import numpy as np

from attacks.membership.comparison import Comparison, stand_ins, with_target
from attacks.membership.rmia import log_ratio_to_all
from attacks.membership.signals import CONFIDENCE
from attacks.metrics import auc
from attacks.records import Pool, Records
from attacks.shadows.fleet import Observations, Shadows
from attacks.shadows.plan import halves
from attacks.targets import from_callable


def noise(models, records, seed):
    """Models whose answers have nothing to do with what they were trained on."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(models, records, 4)).astype(np.float32)
    everything = slice(None)
    return Observations(
        values, halves(records, models, seed), np.zeros(records), everything, everything
    )


def test_each_record_is_known_to_half_of_the_others_whether_the_stand_in_knows_it_or_not():
    seen = noise(8, 31, 0)
    for k, (played, truth) in enumerate(stand_ins(seen, 5)):
        others = [m for m in range(8) if m // 2 != k // 2]
        assert (truth == seen.inside[k]).all()
        assert np.array_equal(played.observed, seen.values[k])
        assert np.array_equal(played.logits, seen.values[others, :, CONFIDENCE])
        assert (played.inside.sum(axis=0) == 3).all()
    assert k == 4


def test_two_models_give_no_stand_in():
    assert not list(stand_ins(noise(2, 31, 0), 4))


def test_whoever_knew_a_record_the_others_do_not_tell():
    """Memorising shadow models around a stand-in that learned nothing: the attack is at chance.

    With the twin among them, fewer of them know a record that the stand-in knows, and the AUC of
    RMIA is 0.62 here.
    """
    areas = []
    for seed in range(150):
        played, truth = next(stand_ins(noise(4, 60, seed), 1))
        seen = Comparison(played.observed, played.logits + 3 * played.inside, played.inside)
        scores = log_ratio_to_all(seen)
        areas.append(auc(scores[truth], scores[~truth]).value)
    error = np.std(areas) / np.sqrt(len(areas))
    assert abs(np.mean(areas) - 0.5) < 3.3 * error  # fails in 1 of 1000 such tests


def test_with_auxiliary_records_stand_ins_are_judged_on_what_the_plan_split():
    rng = np.random.default_rng(0)
    extra = Records(rng.normal(size=(20, 2)), np.arange(20) % 2)
    pool = Pool(rng.normal(size=(9, 2)), np.arange(9) % 2, np.array([0, 1]), auxiliary=extra)
    target = from_callable(lambda rows: np.full((len(rows), 2), 0.5), [0, 1], "scores")
    shadows = Shadows(lambda X, y, seed: target, 4)
    seen = shadows.observations(pool)
    played, truth = next(stand_ins(seen, 1))
    assert played.logits.shape == (2, 20)
    assert truth.sum() == 10
    asked = with_target(target, pool, shadows, lambda done, total: None)
    assert asked.logits.shape == (4, 9)
    assert not asked.inside.any()
