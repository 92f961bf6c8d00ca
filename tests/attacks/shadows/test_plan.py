"""Each record is in exactly half of the models, whatever the numbers."""

import numpy as np
import pytest

from attacks.shadows.plan import halves


@pytest.mark.parametrize(("records", "models"), [(10, 2), (11, 8), (101, 64), (4, 4)])
def test_every_record_trains_half_of_the_models(records, models):
    plan = halves(records, models, seed=0)
    assert (plan.sum(axis=0) == models // 2).all()
    assert set(plan.sum(axis=1)) <= {records // 2, records - records // 2}


def test_splits_are_random_and_repeatable():
    assert np.array_equal(halves(50, 8, 1), halves(50, 8, 1))
    assert not np.array_equal(halves(50, 8, 1), halves(50, 8, 2))
    assert len(np.unique(halves(50, 8, 1), axis=0)) == 8


def test_two_records_share_a_model_by_chance_only():
    together = np.mean([(a := halves(9, 2, s))[0, 0] == a[0, 1] for s in range(2000)])
    # of 9 records a half holds 4: P(same side) = (4*3 + 5*4) / (9*8) = 4/9; 4 standard errors
    assert abs(together - 4 / 9) < 4 * np.sqrt(0.25 / 2000)


def test_users_go_whole():
    users = np.array(["a", "b", "a", "c", "d", "d", "e"])
    plan = halves(7, 6, 0, users)
    assert (plan[:, 0] == plan[:, 2]).all()
    assert (plan[:, 4] == plan[:, 5]).all()
    assert (plan.sum(axis=0) == 3).all()


@pytest.mark.parametrize("models", [0, 1, 7, -2])
def test_odd_fleets_are_refused(models):
    with pytest.raises(ValueError, match=f"even number of two or more, got {models}"):
        halves(10, models, 0)


def test_too_few_records_are_refused():
    with pytest.raises(ValueError, match="3 records"):
        halves(3, 2, 0)
