"""Whole files or none: what is written here is complete or absent, also after a kill."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any


def write_whole(path: Path, write: Callable[[Path], Any]) -> None:
    """Let ``write`` write to a temporary path, which then takes the place of ``path``."""
    temporary = path.with_name(path.name + ".part")
    try:
        write(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
