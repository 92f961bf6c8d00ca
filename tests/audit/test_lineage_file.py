"""What a LINEAGE.yaml may not say: each ends in one line with file, line, field and fix."""

from __future__ import annotations

from pathlib import Path

import pytest

from audit.lineage import read_lineage
from audit.yaml_file import InputError

BAD = {
    "cycle": (
        """\
populations: {p: {}}
stages:
  - {id: a, inputs: [c], reads: [p], budget: none}
  - {id: b, inputs: [a]}
  - {id: c, inputs: [b]}
""",
        ":3: stage a: inputs: go round in a circle (a -> b -> c -> a); remove one of them",
    ),
    "own input": (
        """\
populations: {p: {}}
stages:
  - {id: a, inputs: [a]}
""",
        ":3: stage a: inputs: go round in a circle (a -> a)",
    ),
    "cycle behind a tail": (
        """\
populations: {p: {}}
stages:
  - {id: tail, inputs: [a]}
  - {id: a, inputs: [b]}
  - {id: b, inputs: [a]}
""",
        "go round in a circle",
    ),
    "unknown stage": (
        """\
populations: {p: {}}
stages:
  - id: a
    inputs: [nowhere]
""",
        ":3: stage a: inputs: no stage 'nowhere'; add it or correct the name",
    ),
    "unknown population": (
        """\
populations: {p: {}}
stages:
  - {id: a, reads: [q], budget: none}
""",
        ":3: stage a: reads: no population 'q'; add it to populations",
    ),
    "unknown disjoint population": (
        """\
populations: {p: {}}
disjoint: [[p, q]]
stages:
  - {id: a}
""",
        "disjoint: no population 'q'",
    ),
    "two stages of one name": (
        """\
populations: {p: {}}
stages:
  - {id: a}
  - {id: a}
""",
        ":4: stage a: id: given to two stages; give each its own",
    ),
    "unknown promise": (
        """\
populations: {p: {}}
stages:
  - {id: a}
promises:
  - {stage: z, epsilon: 1, delta: 1.0e-5}
""",
        "promises: no stage 'z'",
    ),
    "unstated cost": (
        """\
populations: {p: {}}
stages:
  - {id: a, reads: [p]}
""",
        ":3: stage a: budget: missing; state it, or 'none' for reads without DP",
    ),
    "budget of nobody": (
        """\
populations: {p: {}}
stages:
  - {id: a, budget: {epsilon: 1}}
""",
        "reads: missing",
    ),
    "people who count twice": (
        """\
populations: {p: {}, q: {}}
stages:
  - {id: a, reads: [p, q], budget: {epsilon: 1}}
""",
        "list them under disjoint",
    ),
    "two budgets": (
        """\
populations: {p: {}}
stages:
  - {id: a, reads: [p], budget: {epsilon: 1, ledger: run.jsonl}}
""",
        "give one of ledger, mechanisms, epsilon",
    ),
    "half a mechanism": (
        """\
populations: {p: {}}
stages:
  - id: a
    reads: [p]
    budget: {mechanisms: [{noise_multiplier: 1.0, steps: 5}]}
""",
        "batch_size is missing",
    ),
    "missing ledger": (
        """\
populations: {p: {}}
stages:
  - {id: a, reads: [p], budget: {ledger: absent.jsonl}}
""",
        "absent.jsonl: cannot be read",
    ),
    "no ledger at all": (
        """\
populations: {p: {}}
stages:
  - {id: a, reads: [p], budget: {ledger: lineage.yaml}}
""",
        "lineage.yaml: ",
    ),
    "unknown key": (
        """\
populations: {p: {}}
stages:
  - {id: a, reeds: [p]}
""",
        ":3: stages.0.reeds: unknown key; did you mean 'reads'?",
    ),
    "unknown kind": (
        """\
populations: {p: {}}
stages:
  - {id: a, kind: magic}
""",
        ":3: stages.0.kind",
    ),
    "a negative epsilon": (
        """\
populations: {p: {}}
stages:
  - {id: a, reads: [p], budget: {epsilon: -1}}
""",
        "epsilon",
    ),
    "no stages": ("populations: {p: {}}\nstages: []\n", "stages"),
    "empty": ("", "expected keys and values"),
}


@pytest.mark.parametrize("name", BAD)
def test_one_line_says_what_is_wrong_and_where(tmp_path: Path, name: str) -> None:
    text, said = BAD[name]
    path = tmp_path / "lineage.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        read_lineage(path)
    message = str(caught.value)
    assert said in message
    assert message.startswith(str(tmp_path))
    assert "\n" not in message


def test_a_long_chain_is_read_in_any_order(tmp_path: Path) -> None:
    stages = [f"  - {{id: s{i}, inputs: [s{i - 1}]}}" for i in range(500, 0, -1)]
    first = "  - {id: s0, reads: [p], budget: {epsilon: 1.0}}"
    path = tmp_path / "lineage.yaml"
    path.write_text("\n".join(["populations: {p: {}}", "stages:", *stages, first]))
    found = read_lineage(path)
    [last] = [e for e in found.exposures if e.stage == "s500"]
    assert last.account.high == 1.0
    assert len(last.path) == 501
