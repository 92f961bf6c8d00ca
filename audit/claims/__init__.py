"""Claims that people make about privacy, and the verdict on each: one module per family.

A family is added by a model in schema.py, a module with ``check(entry, context) -> Finding`` and a
line in ``FAMILIES``.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from reports.record import Claim, Finding
from reports.sentence import finish

if TYPE_CHECKING:
    from audit.claims.context import Context

# families that account for one record: of a user with several they say nothing
RECORDS_ONLY = {"noise_calibration", "amplification", "snippet", "scaling", "no_effect"}

# family -> "module:function"; loaded when a claim of the family is judged
FAMILIES = {
    "dp_guarantee": "audit.claims.dp_guarantee:check",
    "noise_calibration": "audit.claims.noise_calibration:check",
    "conversion": "audit.claims.conversion:check",
    "amplification": "audit.claims.amplification:check",
    "composition": "audit.claims.composition:check",
    "attack_figure": "audit.claims.attack_figure:check",
    "fidelity": "audit.claims.fidelity:check",
    "snippet": "audit.claims.snippet:check",
    "scaling": "audit.claims.scaling:check",
    "no_effect": "audit.claims.no_effect:check",
}


def judge(claims: Sequence[Claim], context: Context) -> tuple[Finding, ...]:
    """One finding per claim, in the claims' order.

    Raises:
        InputError: if a claim's family is unknown or its figures do not fit the family, or a file
            that it points to cannot be read.
    """
    from audit.claims.schema import entry_of

    findings = []
    for claim in claims:
        entry = entry_of(claim)
        module, function = FAMILIES[entry.family].split(":")
        check = getattr(importlib.import_module(module), function)
        found: Finding = check(entry, context)
        if found.state == "supported" and claim.unit == "user" and claim.family in RECORDS_ONLY:
            found = replace(found, state="not checkable", message="claims.user_unit")
        findings.append(finish(found))
    return tuple(findings)


def check_claims(path: Path) -> tuple[Finding, ...]:
    """The findings on the claims in a CLAIMS.yaml; a ledger that it names is read and used.

    Raises:
        InputError: if the file, or a file that it points to, cannot be used.
    """
    from audit.claims.context import for_file
    from audit.claims.schema import read_claims

    file = read_claims(path)
    return judge(file.as_claims(str(path)), for_file(path, file.ledger))
