"""The command group: finds each command's module when it is called, and not before."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import traceback

import click

from audit.cli.errors import EXIT_CODES, BadInput

# name -> (module, its line in --help): the lines stand here so that --help imports no command
COMMANDS = {
    "audit": (
        "audit.cli.audit",
        "Audit a target by an AUDIT.yaml: attacks, budget, verdict.",
    ),
    "init": ("audit.cli.init", "Write a commented AUDIT.yaml for a kind of target."),
    "account": (
        "audit.cli.account",
        "Recompute (ε, δ) of a mechanism or a ledger; calibrate.",
    ),
    "claims": ("audit.cli.claims", "Judge published privacy claims from a CLAIMS.yaml."),
    "ledger": ("audit.cli.ledger", "Verify a training ledger."),
    "lineage": ("audit.cli.lineage", "Recompute the budget along every path of a data lineage."),
    "attack": (
        "audit.cli.attack",
        "Run attacks alone: membership, attribute, synthetic, generator; list them.",
    ),
    "train": ("audit.cli.train", "Train a model, with or without DP, and write its ledger."),
    "postprocess": (
        "audit.cli.postprocess",
        "Drop, generalise and filter synthetic records; record what that read.",
    ),
    "generate": ("audit.cli.generate", "Draw records from a generator that was trained."),
    "quality": ("audit.cli.quality", "Say whether a synthetic table is still useful."),
    "drift": ("audit.cli.drift", "Say whether fresh data ask for training a generator again."),
    "render": ("audit.cli.render", "Render an audit.json as HTML or Markdown."),
    "doctor": ("audit.cli.doctor", "Print versions, device, and which optional parts are missing."),
}


class LazyGroup(click.Group):
    """A group whose commands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The commands in the order in which a newcomer meets them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command's click object, or None for a name that is not ours."""
        if cmd_name not in COMMANDS:
            return None
        command = importlib.import_module(COMMANDS[cmd_name][0]).command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands with the texts of this table, importing none of them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="dpassay")
def cli() -> None:
    """Does this model, this data set or this claim keep the privacy it promises?

    Exit codes: 0 pass, 1 fail, 2 usage or bad input, 3 inconclusive, 4 error.
    """


def main() -> None:
    """Run the command line and end with DESIGN's exit codes."""
    # what stops a container must also let half-written files be taken away
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        code = cli.main(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        code = error.exit_code if isinstance(error, BadInput) else 2
    except (click.Abort, KeyboardInterrupt):
        click.echo("dpassay: interrupted; nothing half-written was left behind", err=True)
        code = 130
    except BrokenPipeError:
        # the reader (a pager, head) went away: not our failure, and not worth a traceback
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except Exception:
        traceback.print_exc()
        click.echo("dpassay: this is a fault of the program, not a verdict", err=True)
        code = EXIT_CODES["error"]
    raise SystemExit(code if isinstance(code, int) else 0)
