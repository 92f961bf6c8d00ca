"""Several processes on one machine (gloo): together they are one DP-SGD run, and fail together.

``ranks.py`` holds what each of them runs. The processes live once for each number of ranks.
"""

import os
import re
import subprocess
import sys
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import chi2, kstest, norm
from torch import nn
from torch.nn.functional import cross_entropy

from audit.accounting import rdp
from audit.ledger import read
from audit.ledger_checks import verify
from trainers.dpsgd.clipping import Flat
from trainers.dpsgd.engine import ClippedSum
from trainers.dpsgd.plan import plan

ROOT = Path(__file__).parents[3]
JOBS = {
    2: "sums noise noise_seeded noise_over_world noise_one_key empty ledger adaptive resume "
    "refused opacus optimizer sharded sharded_refused fails hangs dies",
    3: "sums noise empty ledger adaptive sharded fails",
}
SLOW = pytest.mark.slow
TWO_AND_THREE = pytest.mark.parametrize("world", [2, pytest.param(3, marks=SLOW)])
SEEDED, SECURE = 1e-3, 1e-6  # levels: how often a test of honest noise fails, with no fixed seed

GENERATOR = torch.Generator().manual_seed(0)  # the records of ranks.py
X = torch.randn(300, 6, generator=GENERATOR)
Y = torch.randint(0, 3, (300,), generator=GENERATOR)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """From a number of ranks and a job to what each rank found; runs all of them at first use."""
    folders = {}

    def start(world):
        folder = tmp_path_factory.mktemp(f"ranks{world}")
        command = [sys.executable, str(Path(__file__).with_name("ranks.py")), str(folder)]
        env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        logs = [(folder / f"{rank}.log").open("w") for rank in range(world)]
        running = [
            subprocess.Popen(
                [*command, str(rank), str(world), *JOBS[world].split()],
                env=env, cwd=folder, stdout=logs[rank], stderr=subprocess.STDOUT,
            )
            for rank in range(world)
        ]  # fmt: skip
        for process, log in zip(running, logs, strict=True):
            try:
                process.wait(200)
            finally:
                process.kill()
                log.close()
        return folder

    def look(world, job):
        if world not in folders:
            folders[world] = start(world)
        files = [folders[world] / f"{job}-{rank}.pt" for rank in range(world)]
        missing = [f for f in files if not f.exists()]
        if job != "dies":
            assert not missing, "\n".join(f.read_text() for f in folders[world].glob("*.log"))
        return [torch.load(f, weights_only=True) for f in files if f.exists()]

    look.folders = folders
    return look


def network(weights):
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.LayerNorm(8), nn.Linear(8, 3))
    nn.utils.vector_to_parameters(weights, model.parameters())
    return model.train()


def clipped(weights, rows, clipping_norm):
    """The sum of clipped gradients by one process, and each record's norm."""
    model = network(weights)
    engine = ClippedSum(model, Flat(clipping_norm))
    norms = engine.add(cross_entropy(model(X[rows]), Y[rows], reduction="none"))
    return engine.flat, norms


@TWO_AND_THREE
def test_ranks_take_the_step_of_one_process_on_the_union_of_their_batches(found, world):
    ranks = found(world, "sums")
    for rank in ranks:
        assert bool(rank["buffer"])  # rank 0's, as are the weights
        assert all(
            torch.equal(own, first)
            for own, first in zip(rank["weights"], ranks[0]["weights"], strict=True)
        )
    seen = ranks[0]["weights"]
    assert len(seen) == 7
    for step, (before, after) in enumerate(pairwise(seen)):
        batches = [rank["batches"][step] for rank in ranks]
        for number, batch in enumerate(batches):
            share = (300 * number // world, 300 * (number + 1) // world)
            assert ((batch >= share[0]) & (batch < share[1])).all()
        exact, _ = clipped(before, torch.cat(batches), 0.05)
        assert torch.allclose(after - before, -0.5 / 30 * exact, atol=1e-7)
        assert ranks[0]["sizes"][step] == sum(map(len, batches))
    assert all(rank["sizes"] == [] for rank in ranks[1:])


def test_both_engines_take_the_same_steps(found):
    for rank in found(2, "opacus"):
        assert torch.allclose(*rank["ends"], atol=1e-5)


def is_variance(draws, variance, level):
    """Whether normal draws of mean 0 may have that variance: the chi-square test, two-sided."""
    at = chi2.cdf(float(draws.double().square().sum()) / variance, len(draws))
    return level / 2 < at < 1 - level / 2


def are_independent(one, other, level):
    """Whether the sample correlation r may be that of independent draws: r √n is normal."""
    r = float(np.corrcoef(one.numpy(), other.numpy())[0, 1])
    return abs(r) * len(one) ** 0.5 < norm.isf(level / 2)


@pytest.mark.parametrize(
    ("world", "job", "level"),
    [
        (2, "noise", SECURE),
        (2, "noise_seeded", SEEDED),
        pytest.param(3, "noise", SECURE, marks=SLOW),
    ],
)
def test_noises_are_independent_and_their_sum_has_the_whole_variance(found, world, job, level):
    """σ·C = 2 · 0.5; 101,000 draws: a variance that is off by 4 % is found at either level."""
    ranks = found(world, job)
    total = ranks[0]["total"]
    assert len(total) == 25 * 4040
    assert all(torch.equal(rank["total"], total) for rank in ranks)
    assert torch.allclose(sum(rank["own"] for rank in ranks), total, atol=1e-6)
    assert is_variance(total, 1.0, level)
    assert kstest(total.numpy(), "norm").pvalue > level
    for rank in ranks:
        assert is_variance(rank["own"], 1 / world, level)
        steps = rank["own"].view(25, -1)
        assert are_independent(steps[:-1].flatten(), steps[1:].flatten(), level)
    for one, other in combinations(ranks, 2):
        assert are_independent(one["own"], other["own"], level)


def test_planted_faults_are_found_by_these_tests(found):
    small = found(2, "noise_over_world")
    assert not is_variance(small[0]["total"], 1.0, SECURE)
    assert float(small[0]["total"].var()) == pytest.approx(1 / 2, rel=0.03)  # too small by W
    same = found(2, "noise_one_key")
    assert not are_independent(same[0]["own"], same[1]["own"], SECURE)
    assert not is_variance(same[0]["total"], 1.0, SECURE)


@TWO_AND_THREE
def test_a_rank_without_records_keeps_in_step(found, world):
    ranks = found(world, "empty")
    assert all(len(rank["sizes"]) == 60 and 0 in rank["sizes"] for rank in ranks)
    assert ranks[0]["sizes"][30:] == [0] * 30  # one record in all, and it is the last rank's
    assert sum(ranks[-1]["sizes"][30:]) == 30  # q is 1
    assert all(torch.equal(rank["ends"], ranks[0]["ends"]) for rank in ranks)


@TWO_AND_THREE
def test_rank_0_writes_the_ledger_of_all_and_the_verifier_takes_it(found, world):
    ranks = found(world, "ledger")
    assert all(rank["calls"] == [] for rank in ranks[1:])
    assert ranks[0]["calls"] == [
        sum(sizes) for sizes in zip(*(r["sizes"] for r in ranks), strict=True)
    ]
    path = found.folders[world] / "ledger.jsonl"
    ledger = read(path)
    states = {finding.check: finding.state for finding in verify(ledger)}
    assert states["ledger.ranks"] == states["ledger.batches"] == "supported"
    assert "refuted" not in states.values()
    # the verifier's accountant shares no code with the trainer's, whose figure is in the end mark
    spent = rdp.epsilon(list(ledger.events()), 1e-5, "add-remove").epsilon
    assert ledger.end.epsilon == pytest.approx(spent, rel=1e-3)
    # a row for each rank; one that counts otherwise is found
    rows = plan(300, 60, steps=80, noise_multiplier=1.1).step_rdp((2.0, 8.0))
    text = path.read_text()
    assert text.count('"rdp":' + str([rows] * world).replace(" ", "")) == 80
    other = path.with_name("other.jsonl")
    other.write_text(text.replace(f"{rows[0]}", f"{rows[0] * 1.01}", 1))
    states = {finding.check: finding.state for finding in verify(read(other))}
    assert states["ledger.ranks"] == "refuted"


@TWO_AND_THREE
def test_an_adaptive_norm_moves_alike_and_by_all_ranks_records(found, world):
    """Next to no noise: C moves by the share, among the union of the batches, that lies below."""
    ranks = found(world, "adaptive")
    norms = ranks[0]["norms"]
    assert all(rank["norms"] == norms for rank in ranks)
    for step, (now, then) in enumerate(pairwise(norms)):
        rows = torch.cat([rank["batches"][step] for rank in ranks])
        _, lengths = clipped(ranks[0]["weights"], rows, 1.0)
        share = float(((lengths <= now).float() - 0.5).sum()) / 60 + 0.5
        assert then == pytest.approx(now * np.exp(-0.3 * (min(max(share, 0), 1) - 0.5)), rel=1e-3)


def test_a_run_that_was_killed_goes_on_bit_for_bit(found):
    ranks = found(2, "resume")
    for rank in ranks:
        assert torch.equal(rank["resumed"], rank["whole"])
        assert torch.equal(rank["whole"], ranks[0]["whole"])
        assert rank["state"] == ranks[0]["state"]  # so that one checkpoint serves all


def test_ranks_that_differ_are_refused_on_all_of_them(found):
    said = found(2, "refused")
    for name, text in {
        "shape": r"rank 1: has weight weight: \(4, 6\) .* where rank 0 has weight weight: \(3, 6\)",
        "more": r"rank 1: its model has other weights",
        "clipping": r"rank 1: has clipping: Flat .*0\.1",
        "noise": r"rank 1: has plan: .*noise_multiplier=0\.5",
        "rate": r"rank 1: has optimizer: SGD .*'lr': 0\.1",
        "wrapped": r"DistributedDataParallel adds up gradients that are not clipped",
        "behind": r"rank 1: is not where rank 0 is",
    }.items():
        for rank in said:
            assert re.search(text, rank[name][1]), (name, rank[name])


def test_an_optimizer_that_is_spread_changes_nothing(found):
    for rank in found(2, "optimizer"):
        assert torch.allclose(*rank["ends"], atol=1e-7)


@TWO_AND_THREE
def test_shards_train_as_whole_weights_do(found, world):
    ranks = found(world, "sharded")
    for rank in ranks:
        for batch_size in (40, 2):
            whole, sharded = rank["whole", batch_size], rank["sharded", batch_size]
            assert torch.allclose(sharded, whole, atol=1e-6)
            assert torch.equal(sharded, ranks[0]["sharded", batch_size])
    kept = [rank["kept"] for rank in ranks]
    assert sum(own for own, _ in kept) == kept[0][1]  # the optimizer's state is spread


def test_shards_that_cannot_be_trained_soundly_are_refused(found):
    for rank in found(2, "sharded_refused"):
        for name, text in {
            "part": r"2\.weight: is no shard",
            "unknown": r"0: no rule for Scale",
            "alone": r"train it by PrivateTraining\.step",
            "opacus": r"opacus takes no sharded model",
            "records": r"two of them on each rank",
            "again": r"0\.weight: its gradient is not what",
        }.items():
            assert rank[name][0] == "Unsupported"
            assert re.search(text, rank[name][1]), rank[name]


@TWO_AND_THREE
def test_a_rank_that_fails_makes_the_others_fail_in_that_step(found, world):
    *others, last = found(world, "fails")
    assert last["said"] == ("ValueError", "no such record")
    for rank in others:
        assert rank["said"][0] == "RankFailed"
        assert f"rank {world - 1}: failed" in rank["said"][1]
        assert rank["steps"] == 3


@pytest.mark.parametrize("job", ["hangs", "dies"])
def test_a_rank_that_hangs_or_dies_makes_the_others_fail(found, job):
    """The group's timeout is 4 s for the one that hangs; 60 s else."""
    first = found(2, job)[0]
    assert first["said"][0] == "RuntimeError"
    assert first["steps"] == 3
    assert first["seconds"] < (15 if job == "hangs" else 50)


def test_the_example_in_the_docs_runs_under_torchrun(tmp_path):
    text = (ROOT / "docs" / "trainer.md").read_text(encoding="utf-8")
    section = text[text.index("## Several processes") :]
    (tmp_path / "train.py").write_text(re.search(r"```python\n(.*?)```", section, re.S)[1])
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1000, 8)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    np.savez(tmp_path / "records.npz", x=x, y=y)
    command = re.search(r"^torchrun (.*)$", section, re.M)[1]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *command.split()],
        env=env, cwd=tmp_path, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    ledger = read(tmp_path / "ledger.jsonl")
    findings = verify(ledger, files=[tmp_path / "model.safetensors"])
    states = {finding.check: finding.state for finding in findings}
    assert states["ledger.ranks"] == states["ledger.file"] == states["ledger.steps"] == "supported"
    assert "refuted" not in states.values()
    assert ledger.header.ranks == 2
    assert rdp.epsilon(list(ledger.events()), 1e-5, "add-remove").epsilon <= 3.003
