"""Attribute inference against closed forms, planted leaks, and targets that leak nothing."""

import hashlib
import itertools
import json
import string
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binom, norm
from sklearn.compose import make_column_transformer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from sklearn.tree import DecisionTreeClassifier

from attacks.attribute.column import sensitive_column
from attacks.attribute.infer import infer
from attacks.attribute.methods import METHODS
from attacks.attribute.question import Question, triples
from attacks.attribute.reference import look_alikes, set_reference_aside
from attacks.attribute.result import (
    AttributeResult,
    Side,
    by_value,
    figures,
    paired_difference,
    shared_confidence,
    write_guesses,
    write_json,
)
from attacks.metrics import clopper_pearson
from attacks.records import Membership, Records
from attacks.targets import AccessDenied, from_callable

ATTACKS = tuple(METHODS)
NAMES = ("a", "b", "c", "d", "s")
RIGHT = 0.8  # how often the target below is right about a record that it has not seen


def draw(n, seed, ids, shares=(0.5, 0.5)):
    """Columns a to d, the sensitive s independent of them, and a label that is the sign of a."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n, 4)).round(3)
    s = rng.choice(len(shares), n, p=shares)
    return Records(
        np.column_stack([rows, s]),
        (rows[:, 0] > 0).astype(int),
        np.array([f"{ids}{i}" for i in range(n)]),
    )


def split(n=400, seed=0, shares=(0.5, 0.5), auxiliary=True):
    sides = [draw(n, 3 * seed + k, ids, shares) for k, ids in enumerate("mna")]
    extra = sides[2] if auxiliary else None
    return Membership(sides[0], sides[1], np.array([0, 1]), "randomised", auxiliary=extra)


def memoriser(stored=None, columns=slice(None), right=RIGHT, access="scores"):
    """Right about the stored records, about any other with probability ``right``, by its digest.

    It sees ``columns`` only, and gives 0.9 to the label that it takes for true.
    """
    known = {row[columns].tobytes() for row in ([] if stored is None else stored.features)}

    def sure(row):
        seen = row[columns].tobytes()
        draw = int.from_bytes(hashlib.blake2b(seen, digest_size=6).digest()) / 2**48
        return seen in known or draw < right

    def answer(rows):
        truth = rows[:, 0] > 0
        said = np.where([sure(row) for row in np.ascontiguousarray(rows)], truth, ~truth)
        return np.where(np.column_stack([~said, said]), 0.9, 0.1)

    return from_callable(answer, [0, 1], access)


def named(result, confidence=0.95):
    return {figure.name: figure.estimate for figure in figures(result, confidence)}


def guess(target, records, column="s", attacks=ATTACKS, **more):
    return infer(target, records, [Question(column)], names=NAMES, attacks=attacks, **more)


@pytest.mark.parametrize("attack", ATTACKS)
def test_what_a_memoriser_gives_away_is_known_in_closed_form(attack):
    """The true value answers rightly, the other one with probability q: 1 - q stand out.

    All else is a tie, where the guess is the value that is the more frequent in the reference. Of
    non-members both values answer rightly with probability q, so standing out tells nothing.
    """
    records = split(1500)
    (result,) = guess(memoriser(records.members), records, attacks=[attack])
    mode = int(records.auxiliary.features[:, 4].mean() > 0.5)
    q, stand_out = RIGHT, RIGHT * (1 - RIGHT)
    for name, expected in (
        ("members", (1 - q) + q * np.mean(records.members.features[:, 4] == mode)),
        (
            "non_members",
            stand_out + (1 - 2 * stand_out) * np.mean(records.non_members.features[:, 4] == mode),
        ),
    ):
        side = getattr(result, name)
        found = clopper_pearson(int((side.guesses == side.truth).sum()), len(side), 0.999)
        assert found.low <= expected <= found.high
    found = named(result)
    assert found["advantage"].low > 0
    assert found["gain_over_control"].low > 0
    assert found["auc"].low > 0.5
    asked_reference = 1500 if METHODS[attack].access == "label" else 0
    assert result.queries == 3000 * 2 + asked_reference


def test_the_target_is_asked_once_for_all_attacks_that_see_scores():
    records = split(100)
    target = memoriser(records.members)
    guess(target, records, attacks=["yeom", "confidence"])
    assert target.queries == 200 * 2


def test_targets_that_saw_neither_side_raise_no_more_false_alarms_than_stated():
    """60 runs: the 95 % interval of the advantage misses 0 as often as it may, but no oftener."""
    misses = dict.fromkeys(ATTACKS, 0)
    for seed in range(1, 61):
        records = split(120, seed=seed)
        other = draw(300, 10_000 + seed, "x")
        other.labels[::3] ^= 1  # noise to learn by heart
        tree = DecisionTreeClassifier(random_state=seed).fit(other.features, other.labels)
        target = from_callable(tree.predict_proba, [0, 1], "scores")
        for result in guess(target, records):
            advantage = named(result)["advantage"]
            misses[result.attack] += not advantage.low <= 0 <= advantage.high
    # chance brings more misses than this in 1 of 1000 such tests
    assert max(misses.values()) <= binom.ppf(0.999, 60, 0.05), misses


def test_what_the_population_tells_is_no_leak():
    """s follows from the others and makes the label: everyone guesses it, target or not."""

    def make(n, seed, ids):
        records = draw(n, seed, ids)
        records.features[:, 4] = records.labels
        return records

    records = Membership(make(300, 1, "m"), make(300, 2, "n"), [0, 1], auxiliary=make(300, 3, "a"))
    target = from_callable(
        lambda rows: np.where(rows[:, [4]] == [0, 1], 0.95, 0.05), [0, 1], "scores"
    )
    for result in guess(target, records):
        found = named(result)
        assert found["accuracy_members"].low > 0.97
        assert found["accuracy_non_members"].low > 0.97
        assert found["control_accuracy_members"].low > 0.97
        assert found["advantage"].low <= 0 <= found["advantage"].high
        assert found["gain_over_control"].low <= 0 <= found["gain_over_control"].high


def test_a_target_that_does_not_look_at_the_column_tells_nothing_however_sure_it_is():
    """It knows members by heart and is surer of them, but s changes no answer: only the prior is
    left. Shares that differ in their last bits must not turn into guesses or ranks."""
    records = split(300, shares=(0.6, 0.4))
    known = {row[:4].tobytes() for row in records.members.features}
    rng = np.random.default_rng(0)

    def answer(rows):
        sure = np.array([row[:4].tobytes() in known for row in np.ascontiguousarray(rows)])
        p = np.where(sure, 0.99, 0.6) + rng.uniform(-1e-9, 1e-9, len(rows))
        return np.where((rows[:, [0]] > 0) == [False, True], p[:, None], 1 - p[:, None])

    for result in guess(from_callable(answer, [0, 1], "scores"), records):
        assert set(result.members.guesses) == set(result.non_members.guesses) == {0}
        assert len({*result.members.scores, *result.non_members.scores}) <= 2
        auc = named(result)["auc"]
        assert auc.low <= 0.5 <= auc.high


def test_of_four_triples_the_one_that_was_memorised_is_found():
    """The target looks at a, b, c and s only, so the other triples lack one of its columns."""
    records = split(400)
    target = memoriser(records.members, columns=[0, 1, 2, 4], right=0.5)
    asked = triples("s", ["a", "b", "c", "d"])
    assert [q.known for q in asked] == list(itertools.combinations("abcd", 3))
    results = infer(target, records, asked, names=NAMES, attacks=["yeom"], neighbours=5)
    assert target.queries == 4 * 800 * 2 * 5
    each = shared_confidence(0.95, len(results))
    leaking = [r.known for r in results if named(r, each)["advantage"].low > 0]
    assert leaking == [("a", "b", "c")]
    assert all(r.neighbours == 5 and r.queries == 800 * 2 * 5 for r in results)


def test_a_rare_value_that_leaks_is_seen_among_all_others():
    """3 % have value 2, and only they were memorised: the whole hardly shows it."""
    records = split(1500, shares=(0.5, 0.47, 0.03))
    rare = records.members.take(records.members.features[:, 4] == 2)
    (result,) = guess(memoriser(rare, right=0.2), records, attacks=["confidence"])
    groups = {group.name: group for group in by_value(result)}
    assert groups["2"].members == len(rare)
    taken = {name: group.figures[0].estimate for name, group in groups.items()}
    assert taken["2"].low > 0
    right = groups["2"].figures[1].estimate
    assert right.low <= 0.8**2 <= right.high  # neither other value answers rightly
    assert taken["0"].low <= 0
    assert taken["1"].low <= 0
    assert taken["2"].confidence == pytest.approx(1 - 0.05 / 3)  # pays for three values
    assert named(result)["advantage"].high < 0.1


def test_a_value_that_one_side_lacks_is_counted_and_not_measured():
    records = split(60)
    records.members.features[0, 4] = 7
    (result,) = guess(memoriser(), records, attacks=["yeom"])
    lone = by_value(result)[-1]
    assert (lone.name, lone.members, lone.non_members) == ("7", 1, 0)
    assert "nobody has the value" in lone.unmeasured


def test_columns_may_mix_numbers_and_words():
    rng = np.random.default_rng(0)
    n = 900
    frame = pd.DataFrame(
        {
            "age": rng.integers(18, 90, n),
            "city": rng.choice(["Aa", "Bb", "Cc"], n),
            "weight": rng.normal(70, 9, n),
            "illness": rng.choice(["none", "flu", "gout"], n, p=[0.5, 0.3, 0.2]),
        }
    )
    everyone = Records(frame.to_numpy(), rng.integers(0, 2, n), np.arange(n))
    thirds = [everyone.take(slice(k, k + 300)) for k in (0, 300, 600)]
    records = Membership(*thirds[:2], np.array([0, 1]), auxiliary=thirds[2])
    words = make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore"), ["city", "illness"]), remainder="passthrough"
    )
    tree = make_pipeline(words, DecisionTreeClassifier(random_state=0))

    def framed(rows):
        return pd.DataFrame(rows, columns=frame.columns).infer_objects()

    tree.fit(framed(records.members.features), records.members.labels)
    target = from_callable(lambda rows: tree.predict_proba(framed(rows)), [0, 1], "scores")
    asked = [Question("illness"), Question("age"), Question("illness", ("age", "city"))]
    whole, binned, some = infer(target, records, asked, names=list(frame), attacks=["confidence"])
    assert whole.values == ("flu", "gout", "none")
    assert named(whole)["advantage"].low > 0
    assert binned.binned
    assert len(binned.values) == 5
    # the weight that he lacks is filled in from others, and the target knows members by it
    assert some.neighbours == 10
    assert named(some)["advantage"].value < named(whole)["advantage"].low


def test_labels_suffice_for_one_attack_and_not_for_the_others():
    records = split(600)
    target = memoriser(records.members, access="label")
    (result,) = guess(target, records, attacks=["fredrikson"])
    assert result.access == "label"
    assert named(result)["advantage"].low > 0
    with pytest.raises(AccessDenied, match="yeom needs scores, the target's access is 'label'"):
        guess(target, records, attacks=["yeom"])


@pytest.mark.parametrize("attack", ATTACKS)
def test_sides_exchanged_and_rows_shuffled_each_record_keeps_its_guess(attack):
    records = split(200)
    target = memoriser(records.members)
    rng = np.random.default_rng(1)
    swapped = Membership(
        records.non_members.take(rng.permutation(200)),
        records.members.take(rng.permutation(200)),
        records.classes,
        auxiliary=records.auxiliary.take(rng.permutation(200)),
    )
    (one,), (other,) = (guess(target, r, attacks=[attack]) for r in (records, swapped))

    def by_id(result):
        sides = (result.members, result.non_members)
        return {
            row[0]: row[1:]
            for s in sides
            for row in zip(s.ids, s.guesses, s.scores, s.control_guesses, strict=True)
        }

    assert by_id(one) == by_id(other)
    first, second = (named(r)["advantage"] for r in (one, other))
    assert first.value == pytest.approx(-second.value)
    assert first.low == pytest.approx(-second.high)


def test_half_of_the_non_members_is_the_reference_where_nothing_else_is():
    members, others = draw(100, 1, "m"), draw(200, 2, "n")
    features, labels = others.features.copy(), others.labels.copy()
    features[:40], labels[:40] = features[40:80], labels[40:80]  # twenty per cent exact copies
    records = Membership(members, Records(features, labels, others.ids), [0, 1])
    judged = set_reference_aside(records, seed=3)
    kept, aside = judged.non_members, judged.auxiliary
    assert not set(kept.ids) & set(aside.ids)
    assert len(kept) + len(aside) == 200
    assert not {r.tobytes() for r in kept.features} & {r.tobytes() for r in aside.features}
    persons = np.array([f"p{i % 50}" for i in range(200)])
    records = Membership(
        Records(members.features, members.labels, members.ids, np.arange(100)),
        Records(others.features, others.labels, others.ids, persons),
        [0, 1],
    )
    judged = set_reference_aside(records, seed=3)
    assert not set(judged.non_members.users) & set(judged.auxiliary.users)
    # one of the four records of each of 25 persons is judged, the same in any order of the rows
    assert len(judged.non_members) == len(set(judged.non_members.users)) == 25
    assert judged.notes[-1] == "one record of each of 100 and 25 persons is judged"
    turned = Membership(records.members, records.non_members.take(slice(None, None, -1)), [0, 1])
    again = set_reference_aside(turned, seed=3).non_members
    assert len(set(again.users)) == 25
    assert "100 of 200 non-members, drawn at random," in judged.notes[-2]


def test_look_alikes_are_the_nearest_by_gower():
    rng = np.random.default_rng(0)

    def table(n):
        words = rng.choice(list(string.ascii_lowercase[:4]), n)
        return np.column_stack([rng.normal(size=n), words, 100 * rng.random(n)]).astype(object)

    known, reference = table(20), table(50)
    known[:, [0, 2]] = known[:, [0, 2]].astype(float)
    reference[:, [0, 2]] = reference[:, [0, 2]].astype(float)
    spread = [np.ptp(reference[:, j].astype(float)) for j in (0, 2)]
    found = look_alikes(known, reference, 3)
    for row, nearest in zip(known, found, strict=True):
        distance = [
            abs(row[0] - r[0]) / spread[0] + (row[1] != r[1]) + abs(row[2] - r[2]) / spread[1]
            for r in reference
        ]
        assert sorted(nearest) == sorted(np.argsort(distance)[:3])


def test_a_column_with_many_numbers_is_cut_at_the_references_quantiles():
    reference = np.random.default_rng(0).normal(size=1000)
    column = sensitive_column("x", reference, np.array([-99.0, 99.0]), bins=4)
    edges = norm.ppf([0.25, 0.5, 0.75])
    assert column.edges == pytest.approx(edges, abs=0.1)
    assert column.prior == pytest.approx([0.25] * 4, abs=0.01)
    assert column.candidates == pytest.approx(norm.ppf([0.125, 0.375, 0.625, 0.875]), abs=0.15)
    assert np.isin(column.candidates, reference).all()
    assert column.codes(np.array([-99.0, 99.0])).tolist() == [0, 3]
    assert column.values[0].startswith("below -0.")
    # most records have one value: no bin may be empty
    heavy = np.concatenate([np.zeros(700), np.arange(1.0, 301)])
    column = sensitive_column("x", heavy, heavy, bins=5)
    assert len(column.values) == 2
    assert np.bincount(column.codes(heavy)).min() > 0


def test_the_paired_interval_is_the_published_one_and_keeps_its_level():
    """Airway data of Bentur et al. (1, 1, 7, 12): -0.286 [-0.507, -0.026], as tabulated by
    Fagerland, Lydersen and Laake (2014) for Newcombe's square-and-add interval."""
    one = np.repeat([1, 1, 0, 0], [1, 1, 7, 12])
    other = np.repeat([1, 0, 1, 0], [1, 1, 7, 12])
    found = paired_difference(one, other)
    assert (found.low, found.value, found.high) == pytest.approx(
        (-0.507, -6 / 21, -0.026), abs=5e-4
    )
    rng = np.random.default_rng(0)
    truth, runs = 0.12, 2000  # cells 0.5, 0.22, 0.10, 0.18
    cells = rng.multinomial(150, [0.5, 0.22, 0.10, 0.18], runs)
    missed = 0
    for cell in cells:
        interval = paired_difference(np.repeat([1, 1, 0, 0], cell), np.repeat([1, 0, 1, 0], cell))
        missed += not interval.low <= truth <= interval.high
    # 0.06 for the method's own error; chance brings more in 1 of 1000 such tests
    assert missed <= binom.ppf(0.999, runs, 0.06)
    assert missed >= binom.ppf(0.001, runs, 0.035)


def test_files_hold_every_record_and_every_figure(tmp_path):
    records = split(80)
    results = guess(memoriser(records.members), records)
    write_json(results, tmp_path / "a.json", about={"title": "x"})
    told = json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))
    assert told["title"] == "x"
    assert [r["attack"] for r in told["results"]] == list(ATTACKS)
    advantage = told["results"][0]["figures"][0]
    assert advantage["name"] == "advantage"
    assert advantage["estimate"]["confidence"] == pytest.approx(1 - 0.05 / 3)
    write_guesses(results, tmp_path / "a.parquet")
    frame = pd.read_parquet(tmp_path / "a.parquet")
    assert len(frame) == 3 * 160
    yeom = frame[(frame.attack == "yeom") & frame.member]
    assert list(yeom.id) == list(records.members.ids)
    assert (yeom.truth == yeom.guess).mean() == pytest.approx(
        told["results"][0]["figures"][1]["estimate"]["value"]
    )
    assert list(frame.known[0]) == list("abcd")
    assert {p.name for p in tmp_path.iterdir()} == {"a.json", "a.parquet"}


def test_a_side_whose_columns_differ_in_length_is_refused():
    codes = np.zeros(3, dtype=int)
    with pytest.raises(ValueError, match="guesses"):
        Side(np.arange(3), codes, codes[:2], codes, np.ones(3), np.zeros(3))
    with pytest.raises(ValueError, match="scores: NaN"):
        Side(np.arange(3), codes, codes, codes, np.ones(3), np.full(3, np.nan))


def test_a_result_is_read_only():
    (result,) = guess(memoriser(), split(40), attacks=["yeom"])
    assert isinstance(result, AttributeResult)
    with pytest.raises(ValueError, match="read-only"):
        result.members.guesses[0] = 1


def with_column(values):
    """Records whose column s holds these values, one after the other."""
    sides = []
    for seed, ids in enumerate("mna"):
        records = draw(60, seed, ids)
        table = records.features.astype(object)
        table[:, 4] = [values[i % len(values)] for i in range(60)]
        sides.append(Records(table, records.labels, records.ids))
    return Membership(sides[0], sides[1], np.array([0, 1]), auxiliary=sides[2])


@pytest.mark.parametrize(
    ("records", "question", "more", "message"),
    [
        (split(40), Question("x"), {}, r"column 'x': there is none; the records have a, b, c, d"),
        (split(40), Question("s", ("a", "z")), {}, "column 'z': there is none"),
        (split(40), Question("s", ("a", "s")), {}, "'s' is the column to guess"),
        (split(40), Question("s", ("a", "a")), {}, "a column is named twice"),
        (split(40), Question("s"), {"attacks": ["yeon"]}, "'yeon' is none of yeom, fredrikson"),
        (split(40), Question("s"), {"attacks": ["yeom", "yeom"]}, "each once"),
        (split(40), Question("s"), {"neighbours": 21}, "neighbours: must be from 1 to 20, got 21"),
        (split(40), Question("s"), {"bins": 1}, "bins: must be from 2 to 20, got 1"),
        (split(40), Question("s"), {"names": ("a", "a", "c", "d", "s")}, "4 different names for 5"),
        (split(19), Question("s"), {}, "members: 19, need 20 or more"),
        (split(39, auxiliary=False), Question("s"), {}, "reference records: 19, need 20"),
        (with_column(["one"]), Question("s"), {}, "column 's': .* nothing to infer"),
        (with_column([f"v{i}" for i in range(60)]), Question("s"), {}, "60 categories, at most 50"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(records, question, more, message):
    options = {"names": NAMES, "attacks": ["yeom"], **more}
    with pytest.raises(ValueError, match=message):
        infer(memoriser(), records, [question], **options)


def test_texts_are_no_table_and_strange_labels_no_evidence():
    texts = Records(np.array([f"t{i}" for i in range(30)]), np.arange(30) % 2)
    other = Records(np.array([f"u{i}" for i in range(30)]), np.arange(30) % 2)
    with pytest.raises(ValueError, match="neither texts nor images"):
        infer(memoriser(), Membership(texts, other, [0, 1]), [Question("0")])
    records = split(40)
    records.members.labels[:3] = 5
    strange = Membership(
        records.members, records.non_members, [0, 1, 5], auxiliary=records.auxiliary
    )
    with pytest.raises(ValueError, match="members: labels: 5 is none of the classes"):
        guess(memoriser(), strange)
    with pytest.raises(ValueError, match="asked about twice"):
        infer(memoriser(), split(40), [Question("4"), Question("4", ("3", "2", "1", "0"))])
    with pytest.raises(ValueError, match="triples: a, b; name three"):
        triples("s", ["a", "b"])


def test_the_manual_lists_every_attack_as_it_is():
    manual = (Path(__file__).parents[2] / "docs" / "attribute.md").read_text(encoding="utf-8")
    for m in METHODS.values():
        assert f"| {m.name} | {m.title} | {m.access} | {m.source} |" in manual
        assert f"**{m.name}**" in manual
