"""Reads whatever record of training there is: our ledger, or one of the formats of other tools.

Each reader is one module with ``detects(path, start)`` and ``read(path)``; a line in ``READERS``
makes it known. A record without a hash chain is as good as its keeper: ``verify`` says so.
"""

from __future__ import annotations

import importlib
from pathlib import Path

from audit.ledger import Ledger
from audit.ledger_format import LedgerError

# name -> module, in the order in which they are tried
READERS = {
    "ledger": "audit.ledger_readers.own",
    "opacus": "audit.ledger_readers.opacus",
    "dp-event": "audit.ledger_readers.dp_event",
    "rdp-log": "audit.ledger_readers.rdp_log",
    "csv": "audit.ledger_readers.csv",
    "yaml": "audit.ledger_readers.yaml",
}
_START = 1 << 16
_REACH = {
    "noise_multiplier": (1e-15, 1e15),
    "sample_rate": (1e-15, 1.0),
    "steps": (0, 10**18),
    "count": (0, 10**18),
}


def read(path: Path, format: str | None = None) -> Ledger:
    """The record of training in a file, in a format that is named or else detected by content.

    Raises:
        LedgerError: if the file is missing, its format is not known, or its content cannot be
            understood in full; the message names the file and the field.
    """
    if format is not None and format not in READERS:
        raise LedgerError(f"format: {format!r} is none of {', '.join(READERS)}")
    try:
        with path.open("rb") as file:
            start = file.read(_START)
    except OSError as error:
        raise LedgerError(f"{path}: cannot be read: {error.strerror}") from None
    for name, module in READERS.items():
        reader = importlib.import_module(module)
        if name == format or (format is None and reader.detects(path, start)):
            try:
                ledger = reader.read(path)
            except LedgerError:
                raise
            except (ValueError, ArithmeticError) as error:  # a number of thousands of digits
                raise LedgerError(f"{path}: holds what cannot be read: {error}") from None
            assert isinstance(ledger, Ledger)
            _refuse_extremes(path, ledger)
            return ledger
    raise LedgerError(f"{path}: is no record of training that is known; {', '.join(READERS)} are")


def _refuse_extremes(path: Path, ledger: Ledger) -> None:
    """Refuse numbers that nobody runs with and that floating point cannot account for."""
    for event in ledger.events():
        for name, (least, most) in _REACH.items():
            value = getattr(event, name, None)
            if value is not None and not least <= value <= most:
                raise LedgerError(f"{path}: {name}: must lie from {least:g} to {most:g}")
