"""Labels alone tell members from others where they survive changes, at label access."""

import numpy as np
import pytest
from sklearn.neighbors import NearestNeighbors

from attacks import registry
from attacks.membership.label_only import COPIES, SCALES, label_only
from attacks.metrics import auc
from attacks.records import Membership, Pool, Records
from attacks.targets import from_callable

ASKED = 1 + COPIES * len(SCALES)


def ask(answer, features, labels, classes=(0, 1), seed=0):
    target = from_callable(answer, classes, "label", gives="label")
    pool = Pool(features, np.asarray(labels), np.asarray(classes))
    scores = label_only(target, pool, None, seed, lambda done, total: None).scores
    assert target.queries == ASKED * len(features)
    return scores


def test_a_wider_region_of_right_labels_shows_where_all_labels_are_right():
    """Members keep their label within a distance of 0.5, others within 0.05: label_gap is blind."""
    rng = np.random.default_rng(0)
    sides = [Records(rng.normal(size=(80, 3)), np.arange(80) % 2, np.arange(80) + 80 * i)
             for i in range(2)]  # fmt: skip
    everyone = np.concatenate([side.features for side in sides])
    labels = np.concatenate([side.labels for side in sides])
    radius = np.repeat([0.5, 0.05], 80)
    finder = NearestNeighbors(n_neighbors=1).fit(everyone)

    def answer(rows):
        distance, nearest = (found[:, 0] for found in finder.kneighbors(rows))
        return np.where(distance <= radius[nearest], labels[nearest], 1 - labels[nearest])

    target = from_callable(answer, [0, 1], "label", gives="label")
    records = Membership(*sides, np.array([0, 1]))
    blind, seeing = (registry.run(n, target, records) for n in ("label_gap", "label_only"))
    assert auc(blind.member_scores, blind.non_member_scores).value == 0.5
    assert auc(seeing.member_scores, seeing.non_member_scores).low > 0.9
    assert seeing.queries == 160 * ASKED


def test_the_score_is_the_mean_over_the_scales_of_how_often_the_label_is_right():
    """Always right: 1. Right about the record as it is and nothing else: one share of five."""
    X = np.random.default_rng(0).normal(size=(40, 2))
    assert np.allclose(ask(lambda rows: np.zeros(len(rows)), X, np.zeros(40)), 1)
    known = {row.tobytes() for row in X}
    only_as_is = lambda rows: np.array([row.tobytes() not in known for row in rows])  # noqa: E731
    assert np.allclose(ask(only_as_is, X, np.zeros(40)), 1 / (1 + len(SCALES)))


def test_noise_follows_the_column_and_its_kind_is_kept():
    rng = np.random.default_rng(0)
    X = np.empty((200, 4), dtype=object)
    X[:, 0] = (1000 * rng.normal(size=200)).tolist()
    X[:, 1] = rng.integers(18, 90, 200).tolist()
    X[:, 2] = rng.choice(["north", "south"], 200)
    X[:, 3] = 2.5
    seen = []
    ask(lambda rows: seen.append(rows) or np.zeros(len(rows)), X, np.zeros(200))
    smallest, largest = seen[1], seen[-1]
    for copy, scale in ((smallest, SCALES[0]), (largest, SCALES[-1])):
        moved = (copy[:, 0] - X[:, 0]).astype(float)
        spread = np.std(X[:, 0].astype(float))
        assert 0.7 * scale < moved.std() / spread < 1.2 * scale
        # half of the exchanged words are exchanged for the same word
        assert abs((copy[:, 2] != X[:, 2]).mean() - scale / 2) < 0.12
    assert set(largest[:, 2]) == {"north", "south"}
    assert set(largest[:, 3]) == {2.5}
    ages = largest[:, 1].astype(float)
    assert (ages == np.rint(ages)).all()
    assert ages.min() >= min(X[:, 1])
    assert ages.max() <= max(X[:, 1])


@pytest.mark.parametrize("kind", [np.float32, np.uint8, np.bool_])
def test_images_keep_shape_and_type(kind):
    X = np.random.default_rng(0).integers(0, 255, (30, 2, 4, 4)).astype(kind)
    seen = []
    ask(lambda rows: seen.append(rows) or np.zeros(len(rows)), X, np.zeros(30))
    assert {(copy.dtype, copy.shape) for copy in seen} == {(np.dtype(kind), X.shape)}
    assert not (seen[-1] == X).all()


@pytest.mark.parametrize("kind", [object, np.str_])
def test_texts_lose_words(kind):
    texts = np.array(["one two three four five six"] * 50 + ["alone"] * 50, dtype=kind)
    seen = []
    ask(lambda rows: seen.append(rows) or np.zeros(len(rows)), texts, np.zeros(100))
    counts = np.array([[len(text.split()) for text in copy] for copy in seen])
    assert (counts[:, 50:] == 1).all()
    assert (counts[0] == [6] * 50 + [1] * 50).all()
    assert counts[-COPIES:, :50].mean() == pytest.approx(6 * (1 - SCALES[-1]), abs=0.25)
    order = texts[0].split()
    assert all([w for w in order if w in text.split()] == text.split() for text in seen[-1][:50])
