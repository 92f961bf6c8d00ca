"""The errors that the command line shows as one line, and the exit codes they end with.

0 pass · 1 fail · 2 usage or bad input · 3 inconclusive · 4 error. An exception that nobody foresaw
is 4, never 1: what broke did not fail the audit, and what did not run did not pass it.
"""

from __future__ import annotations

from typing import IO, Any

import click

from reports.record import Outcome

EXIT_CODES: dict[Outcome, int] = {"pass": 0, "fail": 1, "inconclusive": 3, "error": 4}


class BadInput(click.ClickException):
    """What the user gave cannot be used: the message names the file, the field and the fix."""

    exit_code = 2

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the message as one line on standard error."""
        shown = "".join(c if c.isprintable() else " " for c in self.message)  # no escape sequences
        click.echo(f"dpassay: {' '.join(shown.split())}", file=file, err=file is None)
