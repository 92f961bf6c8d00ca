"""A small real audit, run as a user runs it, and keys to seal it with."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from click.testing import CliRunner
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from audit.cli.main import cli
from audit.seal import Check, seal
from trainers.ledger import Header, LedgerWriter

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
OTHER = Ed25519PrivateKey.from_private_bytes(bytes(range(1, 33)))
PUBLIC = KEY.public_key().public_bytes_raw()
N, BATCH, STEPS = 1000, 100, 40

CONFIG: dict[str, Any] = {
    "version": 1,
    "title": "A model that was sealed",
    "target": {
        "kind": "scores",
        "file": "scores.csv",
        "higher_means": "non-member",
        "split": "randomised",
    },
    "ledger": "ledger.jsonl",
    "model_files": ["model.bin"],
    "claims": [
        {
            "id": "budget",
            "family": "dp_guarantee",
            "statement": "(4, 1e-5)-DP",
            "epsilon": 4.0,
            "delta": 1e-5,
            "relation": "add-remove",
        },
        {
            "id": "distance",
            "family": "fidelity",
            "statement": "KS below 0.2",
            "metric": "ks",
            "value": 0.05,
            "limit": 0.2,
            "n_real": 1000,
            "n_synthetic": 1000,
        },
        {
            "id": "code",
            "family": "snippet",
            "statement": "each record is clipped",
            "asserts": "bounds_each_record",
            "file": "step.py",
        },
    ],
    "policy": "policy.yaml",
}
POLICY = {
    "limits": [{"figure": "auc", "at_most": 0.6, "worse_than_baseline": 0.1}],
    "waivers": [
        {
            "rule": "limit.auc",
            "finding": "attack/precomputed",
            "reason": "known",
            "by": "the owner",
            "until": "2030-01-01",
        }
    ],
}
STEP = Path(__file__).parents[2] / "fixtures" / "snippets" / "dpsgd_step.py"


def ledger(path: Path, noise: float = 1.1, model: bytes = b"model") -> None:
    """A ledger of an honest run with this noise multiplier."""
    sizes = np.random.default_rng(1).binomial(N, BATCH / N, STEPS)
    header = Header("a" * 64, N, "poisson", BATCH / N, BATCH, "per_sample", 1.0, noise, "secure")
    released = path.parent / "model.bin"
    released.write_bytes(model)
    with LedgerWriter.create(path, header) as writer:
        for size in sizes.tolist():
            writer.step(
                batch_size=size, expected_batch_size=BATCH, noise_multiplier=noise,
                clipping_norm=1.0,
            )  # fmt: skip
        writer.checkpoint(released)
        writer.end()


def make(folder: Path) -> Path:
    """Run two audits in ``folder``; the second has the first as baseline and is returned."""
    random, member = np.random.default_rng(5), np.arange(400) % 2
    frame = pd.DataFrame({"score": random.normal(size=400) - 0.3 * member, "member": member})
    frame.to_csv(folder / "scores.csv", index=False)
    ledger(folder / "ledger.jsonl")
    shutil.copy(STEP, folder / "step.py")
    (folder / "policy.yaml").write_text(yaml.safe_dump(POLICY))
    (folder / "AUDIT.yaml").write_text(yaml.safe_dump(CONFIG))
    before = Path.cwd()
    os.chdir(folder)
    try:
        for options in (["--out", "before"], ["--out", "out", "--baseline", "before/audit.json"]):
            result = CliRunner().invoke(cli, ["audit", "AUDIT.yaml", "--quiet", *options])
            assert result.exit_code in (0, 1, 3), result.output
    finally:
        os.chdir(before)
    return folder / "out"


def sealed(folder: Path, key: Ed25519PrivateKey = KEY, force: bool = False) -> Path:
    """Seal the folder with the key."""
    return seal(folder, key.public_key().public_bytes_raw(), key.sign, force=force)[0]


def states(checks: tuple[Check, ...], part: str = "") -> dict[str, str]:
    """Each subject's state, of one part or of all."""
    return {c.subject: c.state for c in checks if part in ("", c.part)}
