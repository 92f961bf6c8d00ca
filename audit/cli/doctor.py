"""``dpassay doctor``: what is installed, which device would be used, and what is missing."""

from __future__ import annotations

import platform
import shutil
import sys
from importlib import metadata, util
from typing import NamedTuple

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

CORE = ("numpy", "scipy", "scikit-learn", "pandas", "torch", "opacus", "dp-accounting")


class Part(NamedTuple):
    """An optional part: the module that shows it is there, what it is for, how to get it."""

    module: str
    purpose: str
    install: str


OPTIONAL = (
    Part("transformers", "transformers models as targets", "pip install 'dpassay[lm]'"),
    Part("presidio_analyzer", "finding personal data in text", "pip install 'dpassay[pii]'"),
    Part("sacrebleu", "BLEU of synthetic text", "pip install 'dpassay[text]'"),
    Part("rouge_score", "ROUGE of synthetic text", "pip install 'dpassay[text]'"),
    Part("ray", "shadow models on a cluster", "pip install 'dpassay[scale]'"),
)


def device() -> str:
    """The device that ``device="auto"`` means here, in words."""
    import torch

    if torch.cuda.is_available():
        return f"cuda ({torch.cuda.get_device_name(0)}, {torch.cuda.device_count()} in all)"
    return f"cpu ({torch.get_num_threads()} threads)"


@click.command()
def command() -> None:
    """Print versions, the device, and the optional parts with the command that installs them."""
    console = Console()
    table = Table(
        "part", "state", "for, or how to get it", title="dpassay doctor", title_justify="left"
    )
    table.add_row("dpassay", metadata.version("dpassay"), "")
    table.add_row("python", platform.python_version(), sys.executable)
    for name in CORE:
        table.add_row(name, metadata.version(name), "")
    table.add_row("device", device(), "what device: auto means here")
    for part in OPTIONAL:
        if util.find_spec(part.module):
            table.add_row(part.module, "found", part.purpose)
        else:
            table.add_row(part.module, "missing", escape(f"{part.purpose}: {part.install}"))
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    table.add_row("browser", browser or "missing", "only for the tests that look at the report")
    console.print(table)
