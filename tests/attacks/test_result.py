"""Results refuse what cannot be judged, keep ids, and are written whole."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from attacks.files import whole_file
from attacks.metrics import auc
from attacks.precomputed import precomputed
from attacks.result import AttackResult, write_json, write_scores


def result(members=(2.0, 1.0), others=(0.0, np.inf)):
    return AttackResult("a", "An attack", "scores", members, others, ["m1", "m2"], ["n1", "n2"])


def test_nan_is_refused_by_id():
    with pytest.raises(ValueError, match="score of non-member 'n2' is NaN"):
        result(others=(0.0, np.nan))
    with pytest.raises(ValueError, match="3 member scores, 2 ids"):
        result(members=(1, 2, 3))
    with pytest.raises(ValueError, match="need one or more"):
        result(members=())


def test_scores_cannot_be_changed_afterwards():
    with pytest.raises(ValueError, match="read-only"):
        result().member_scores[0] = 5


def test_parquet_holds_ids_truth_and_scores(tmp_path):
    write_scores(result(), tmp_path / "deep" / "scores.parquet")
    table = pq.read_table(tmp_path / "deep" / "scores.parquet").to_pydict()
    assert table == {
        "id": ["m1", "m2", "n1", "n2"],
        "member": [True, True, False, False],
        "score": [2.0, 1.0, 0.0, np.inf],
    }


def test_json_holds_cost_and_figures(tmp_path):
    write_json(result(), tmp_path / "a.json")
    plain = json.loads((tmp_path / "a.json").read_text())
    assert (plain["members"], plain["non_members"], plain["access"]) == (2, 2, "scores")
    figures = {f["name"]: f for f in plain["figures"]}
    assert figures["auc"]["estimate"]["value"] == 0.5
    assert "too few" in figures["tpr_at_fpr_0.001"]["unmeasured"]


def test_an_interrupted_write_leaves_nothing_behind(tmp_path):
    def interrupted(path):
        with whole_file(path) as temporary:
            temporary.write_text("half")
            raise KeyboardInterrupt

    (tmp_path / "old.json").write_text("old")
    for name in ("old.json", "new.json"):
        with pytest.raises(KeyboardInterrupt):
            interrupted(tmp_path / name)
    assert [p.name for p in tmp_path.iterdir()] == ["old.json"]
    assert (tmp_path / "old.json").read_text() == "old"


def test_direction_is_taken_as_told_and_never_guessed():
    losses = precomputed([0.1, 0.2], [1.0, 2.0], higher_means="non-member")
    assert auc(losses.member_scores, losses.non_member_scores).value == 1
    wrong = precomputed([0.1, 0.2], [1.0, 2.0], higher_means="member")
    assert auc(wrong.member_scores, wrong.non_member_scores).value == 0
    with pytest.raises(ValueError, match="higher_means"):
        precomputed([1], [0], higher_means="larger")
