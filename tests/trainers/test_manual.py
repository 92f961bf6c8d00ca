"""The manual's first example, run as it stands."""

import re
from pathlib import Path


def test_three_lines_around_a_loop(capsys):
    text = (Path(__file__).parents[2] / "docs" / "trainer.md").read_text(encoding="utf-8")
    example = re.findall(r"```python\n(.*?)```", text, re.S)[0]
    exec(compile(example, "docs/trainer.md", "exec"), {"__name__": "manual"})
    assert capsys.readouterr().out.startswith("30 steps, ε = ")
