"""``dpassay attack``: the attacks there are."""

from __future__ import annotations

import click


@click.group()
def command() -> None:
    """The attacks that an AUDIT.yaml may name."""


@command.command("list")
def list_() -> None:
    """List every attack with the access it needs, what it trains, and its source."""
    from rich.console import Console
    from rich.table import Table

    from attacks.registry import entries

    table = Table("name", "what it is", "access", "trains", "source")
    for entry in entries().values():
        trains = "shadow models" if entry.needs_shadows else "nothing"
        table.add_row(entry.name, entry.title, entry.access, trains, entry.source)
    Console().print(table)
