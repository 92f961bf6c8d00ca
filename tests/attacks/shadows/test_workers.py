"""The same answers wherever the models are trained, and a lost machine costs only its own tasks."""

import time

import numpy as np
import pytest

from attacks.records import Pool
from attacks.shadows.fleet import Shadows
from attacks.shadows.workers import spread

RNG = np.random.default_rng(0)
POOL = Pool(RNG.normal(size=(40, 3)), np.arange(40) % 2, np.array([0, 1]))


def slow_fit(seconds):
    """A recipe that can be sent to another machine: nothing in it lives in this file."""

    def fit(X, y, seed):
        import time

        from sklearn.linear_model import LogisticRegression

        from attacks.targets import from_sklearn

        time.sleep(seconds)
        return from_sklearn(LogisticRegression(random_state=seed).fit(X, y))

    return fit


def slow_fit_many(seconds):
    fit = slow_fit(seconds)

    def fit_many(X, y, inside, seeds):
        for row, seed in zip(inside, seeds, strict=True):
            yield fit(X[row], y[row], seed)

    return fit_many


@pytest.fixture(scope="module")
def alone():
    return Shadows(slow_fit(0), 8).observations(POOL).values


@pytest.fixture
def cluster():
    """A head that trains nothing, and two nodes of one CPU each."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "include_dashboard": False}
    nodes = Cluster(initialize_head=True, head_node_args=head)
    ray.init(address=nodes.address, log_to_driver=False, logging_level="error")
    nodes.workers = [nodes.add_node(num_cpus=1) for _ in range(2)]
    nodes.wait_for_nodes()
    yield nodes
    ray.shutdown()
    nodes.shutdown()


def test_a_cluster_loses_a_node_midway_and_the_fleet_is_whole(cluster, alone):
    """The node goes while it trains: its task runs again on the other, with equal answers."""
    lost, counts = [], []

    def lose_one(done, total):
        counts.append((done, total))
        if done == 2 and not lost:
            lost.append(cluster.workers[0])
            cluster.remove_node(cluster.workers[0], allow_graceful=False)

    fleet = Shadows(slow_fit(0.7), 8, workers="ray")
    seen = fleet.observations(POOL, lose_one)
    assert lost
    assert counts == [(done, 8) for done in range(9)]
    assert np.array_equal(seen.values, alone)
    together = Shadows(None, 8, fit_many=slow_fit_many(0), workers="ray").observations(POOL)
    assert np.array_equal(together.values, alone)

    def broken(X, y, seed):
        raise ValueError("no convergence")

    with pytest.raises(ValueError, match=r"^shadow model \d: no convergence$"):
        Shadows(broken, 4, workers="ray").observations(POOL)


def test_no_workers_are_refused():
    with pytest.raises(ValueError, match="workers: 0 can train nothing"):
        list(spread(time.sleep, [(0,)], 0))
