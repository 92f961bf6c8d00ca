"""``dpassay attack``: the attacks there are, and one at a time."""

from __future__ import annotations

import click

from audit.cli.attack_attribute import command as attribute
from audit.cli.attack_generator import command as generator
from audit.cli.attack_membership import command as membership
from audit.cli.attack_synthetic import command as synthetic


@click.group()
def command() -> None:
    """Run attacks alone, without an audit's verdict; list the attacks there are."""


command.add_command(membership)
command.add_command(attribute)
command.add_command(synthetic)
command.add_command(generator)


@command.command("list")
def list_() -> None:
    """List every attack with the access it needs, what it trains, and its source."""
    from rich.console import Console
    from rich.table import Table

    from attacks.registry import entries
    from attacks.synthetic.registry import ENTRIES

    table = Table("name", "what it is", "access", "trains", "source")
    for entry in entries().values():
        trains = "shadow models" if entry.needs_shadows else "nothing"
        table.add_row(entry.name, entry.title, entry.access, trains, entry.source)
    for release in ENTRIES.values():
        access = "generator" if release.generator else "synthetic table"
        trains = "shadow generators" if release.generator else "nothing"
        table.add_row(release.name, release.title, access, trains, release.source)
    Console().print(table)
