"""``dpassay registry``: the signed list of runs, batches and marks that traces lead back to."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from audit.cli.claims import safe
from audit.cli.errors import EXIT_CODES, BadInput
from audit.cli.keys import folder_keys

if TYPE_CHECKING:
    from audit.ledger import Ledger
    from audit.registry.entries import Problem, Run
    from audit.registry.store import Registry

_PATH = click.Path(path_type=Path)
_keys = click.option("--keys", "folder", required=True, type=_PATH, help="Folder of dpassay keys.")


@click.group()
def command() -> None:
    """The signed, append-only list of runs and releases. URL: PostgreSQL's, or a SQLite file."""


@command.command()
@click.argument("url")
@_keys
def create(url: str, folder: Path) -> None:
    """Make a registry at URL that rests on the root key of a folder."""
    from audit.registry import store
    from audit.yaml_file import InputError

    try:
        with store.create(url, folder_keys(folder)) as made:
            _print_head(made)
    except InputError as error:
        raise BadInput(str(error)) from None


@command.command()
@click.argument("url")
@click.argument("ledger", type=_PATH)
@_keys
@click.option("--model", type=_PATH, help="The model's file or folder.")
@click.option("--epsilon", type=float, help="The claimed ε; default: what the ledger says.")
@click.option("--delta", type=float, help="Its δ; default: what the ledger says.")
@click.option(
    "--relation",
    type=click.Choice(["add-remove", "replace-one"]),
    default="add-remove",
    show_default=True,
    help="Neighbouring relation of the claim.",
)
@click.option("--name", help="A name for people; default: the ledger's file name.")
@click.option("--id", "run_id", help="The run's id; default: 16 digits of the ledger's head.")
def run(url: str, ledger: Path, folder: Path, model: Path | None, **said: Any) -> None:
    """Register the training run that LEDGER is the record of, and print its id."""
    keys = folder_keys(folder)
    with _opened(url) as registry:
        registered = _run(url, ledger, model, said)
        registry.add_run(registered, keys)
    click.echo(registered.id)


@command.command()
@click.argument("url")
@_keys
@click.option("--code", required=True, help="The 8 hexadecimal digits after U+2063.")
@click.option("--batch", required=True, help="The batch that the code was made of.")
@click.option("--run", "run_id", required=True, help="Id of the registered run that made it.")
def legacy(url: str, folder: Path, code: str, batch: str, run_id: str) -> None:
    """Register a code of the older recipe, which anybody can forge."""
    from audit.registry.entries import Legacy

    keys = folder_keys(folder)
    with _opened(url) as registry:
        registry.add_legacy(Legacy(code.lower(), batch, run_id), keys)


@command.command()
@click.argument("url")
@click.argument("batch")
@_keys
def abandon(url: str, batch: str, folder: Path) -> None:
    """State that BATCH, whose writer was killed, will never be finished."""
    keys = folder_keys(folder)
    with _opened(url) as registry:
        registry.abandon(batch, keys)


@command.command()
@click.argument("url")
@_keys
def rotate(url: str, folder: Path) -> None:
    """Put the folder's newest signing key in force at URL now, not with its next entry."""
    keys = folder_keys(folder)
    with _opened(url) as registry:
        changed = registry.hand_over(keys)
    click.echo(f"key {keys.id} is in force" + ("" if changed else " already"))


@command.command()
@click.argument("url")
def upgrade(url: str) -> None:
    """Bring the tables at URL to this program's version. Back up first."""
    from audit.registry import store
    from audit.yaml_file import InputError

    try:
        before, after = store.upgrade(url)
    except InputError as error:
        raise BadInput(str(error)) from None
    click.echo(f"version {after}" + ("" if before != after else " already"))


@command.command()
@click.argument("url")
@click.option("--public-key", metavar="HEX", help="Root public key to expect, 64 digits.")
@click.option("--head", metavar="HASH", help="Hash of an entry that must be there, 64 digits.")
def verify(url: str, public_key: str | None, head: str | None) -> None:
    """Check every entry, signature, block and mark at URL; print every problem.

    Exit codes: 0 all holds, 1 something was changed, dropped or forged, 2 bad input, 3 nothing of
    that, but no public key was given, or a batch was never finished.
    """
    key = None if public_key is None else bytes.fromhex(hex_digits(public_key, "--public-key"))
    pinned = None if head is None else hex_digits(head, "--head")
    with _opened(url) as registry:
        problems = registry.verify(key, pinned)
        _print_verified(registry, problems, key, pinned)
    if any(problem.kind != "unfinished" for problem in problems):
        raise SystemExit(EXIT_CODES["fail"])
    open_ = bool(problems) or key is None
    raise SystemExit(EXIT_CODES["inconclusive" if open_ else "pass"])


@command.command()
@click.argument("url")
@click.option("--json", "as_json", is_flag=True, help="Print runs, batches and head as JSON.")
def show(url: str, as_json: bool) -> None:
    """List the runs and batches at URL, and the head to keep elsewhere."""
    with _opened(url) as registry:
        if as_json:
            click.echo(json.dumps(_plain(registry), indent=1, ensure_ascii=False))
        else:
            _print_runs(registry)
            _print_batches(registry)
            _print_head(registry)
        unsound = len([p for p in registry.verify_chain() if p.kind != "unfinished"])
    if unsound:
        click.echo(f"{unsound} problems: see dpassay registry verify", err=True)


@contextmanager
def _opened(url: str) -> Iterator[Registry]:
    from audit.registry import store
    from audit.yaml_file import InputError

    try:
        with store.open(url) as registry:
            yield registry
    except InputError as error:
        raise BadInput(str(error)) from None


def hex_digits(text: str, option: str) -> str:
    """The 64 hexadecimal digits of a hash or key given as an option, in small letters.

    Raises:
        BadInput: if they are none.
    """
    if len(text) != 64 or text.lower().strip("0123456789abcdef"):
        raise BadInput(f"{option}: needs 64 hexadecimal digits")
    return text.lower()


def _run(url: str, file: Path, model: Path | None, said: dict[str, Any]) -> Run:
    from audit.ledger_format import LedgerError
    from audit.ledger_readers import read
    from audit.record_files import digest
    from audit.registry.entries import Run

    try:
        before = digest(file, "ledger").sha256
        ledger = read(file)
        if digest(file, "ledger").sha256 != before:
            raise BadInput(f"{file}: grew while it was read; register the run when it has ended")
        model_sha256 = "" if model is None else digest(model, "model").sha256
    except LedgerError as error:
        raise BadInput(str(error)) from None
    except OSError as error:
        raise BadInput(f"{error.filename}: cannot be read: {error.strerror}") from None
    header = ledger.header
    epsilon, delta = _claimed(ledger, said["epsilon"], said["delta"])
    return Run(
        id=said["run_id"] or (ledger.head or before)[:16],
        name=said["name"] or file.name,
        ledger_file=_from(url, file),
        ledger_sha256=before,
        ledger_head=ledger.head,
        model_sha256=model_sha256,
        data_fingerprint=header.data_fingerprint if header else "",
        epsilon=epsilon,
        delta=delta,
        unit=header.unit if header else "record",
        relation=said["relation"],
    )


def _claimed(
    ledger: Ledger, epsilon: float | None, delta: float | None
) -> tuple[float | None, float | None]:
    """What is claimed: as given, or else what the ledger ended with or aimed at."""
    if epsilon is not None and not 0 <= epsilon < math.inf:
        raise BadInput("--epsilon: must be finite and not negative")
    if delta is not None and not 0 <= delta < 1:
        raise BadInput("--delta: must lie from 0 to below 1")
    header, end = ledger.header, ledger.end
    if epsilon is None and end is not None:
        epsilon = end.epsilon
    if epsilon is None and header is not None:
        epsilon = header.epsilon
    if delta is None and header is not None:
        delta = header.delta
    return epsilon, delta


def _from(url: str, file: Path) -> str:
    """The ledger's path as it is registered: from the folder of a SQLite registry."""
    from audit.registry.database import Database

    place = Database(url).path
    if place is None:
        return file.as_posix()
    return Path(os.path.relpath(file.absolute(), place.absolute().parent)).as_posix()


def _plain(registry: Registry) -> dict[str, Any]:
    return {
        "registry": registry.name,
        "root": registry.root.hex(),
        "head": registry.head,
        "entries": len(registry.entries),
        "runs": [vars(run) for run in registry.runs.values()],
        "batches": [
            {**vars(batch), "state": registry.state(batch.id)}
            for batch in registry.batches.values()
        ],
        "legacy": [vars(code) for codes in registry.legacy.values() for code in codes],
    }


def _print_runs(registry: Registry) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="runs", title_justify="left")
    for name in ("run", "name", "ledger", "ε", "δ", "unit", "relation", "registered"):
        table.add_column(name, overflow="fold")
    for run in registry.runs.values():
        figures = ["–" if v is None else f"{v:g}" for v in (run.epsilon, run.delta)]
        words = (run.id, run.name, run.ledger_file, *figures, run.unit, run.relation)
        table.add_row(*map(safe, (*words, run.registered)))
    Console().print(table)


def _print_batches(registry: Registry) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="batches", title_justify="left")
    for name in ("batch", "run", "kind", "records", "state", "marking secret", "created"):
        table.add_column(name, overflow="fold")
    for batch in registry.batches.values():
        words = (batch.id, batch.run, batch.kind, str(batch.records), registry.state(batch.id))
        table.add_row(*map(safe, (*words, batch.mark_key, batch.created)))
    Console().print(table)


def _print_head(registry: Registry) -> None:
    click.echo(f"root public key  {registry.root.hex()}")
    click.echo(f"head to pin      {registry.head}  (entry {max(registry.entries, default=0)})")


def _print_verified(
    registry: Registry, problems: tuple[Problem, ...], key: bytes | None, head: str | None
) -> None:
    from rich.console import Console

    console = Console(soft_wrap=True, highlight=False)
    for problem in problems:
        where = f"entry {problem.entry}" if problem.entry else "registry"
        console.print(safe(f"{problem.kind}: {where}: {problem.detail}"))
    known = f"{len(registry.entries)} entries, {len(registry.runs)} runs"
    console.print(safe(f"{known}, {len(registry.batches)} batches; {len(problems)} problems"))
    if key is None:
        console.print("open: nobody vouches for the root; give its --public-key")
    if head is None:
        console.print("not seen: entries dropped from the end; keep the head, and give --head")
    _print_head(registry)
