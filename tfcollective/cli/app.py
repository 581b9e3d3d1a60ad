"""The commands together, and the one table from errors to exit codes."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence

import click

from tfcollective._version import __version__
from tfcollective.cli.agent import agent
from tfcollective.cli.check import check
from tfcollective.cli.env import env
from tfcollective.cli.extra_commands import CommandGroup
from tfcollective.cli.jobs import kill, logs
from tfcollective.cli.migrate import migrate
from tfcollective.cli.run import run
from tfcollective.cli.status import status
from tfcollective.errors import ConfigError, CoordinatorError, RendezvousError, TfCollectiveError, UnsupportedError
from tfcollective.exit_codes import SIGNAL_BASE, ExitCode

__all__ = ["EXIT_CODES", "invoke"]

# The first row that fits decides.
EXIT_CODES: tuple[tuple[type[TfCollectiveError], ExitCode], ...] = (
    (ConfigError, ExitCode.USAGE),
    (UnsupportedError, ExitCode.USAGE),
    (RendezvousError, ExitCode.NOT_STARTED),
    (CoordinatorError, ExitCode.LOST),
    (TfCollectiveError, ExitCode.INTERNAL),
)


@click.group(
    cls=CommandGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="""\b
Examples:
  tfcollective run -np 2 python train.py
  tfcollective status
  tfcollective check""",
)
@click.version_option(__version__, prog_name="tfcollective")
def app() -> None:
    """Synchronous data-parallel training for TensorFlow and Keras."""


for _command in (run, status, logs, kill, check, env, migrate, agent):
    app.add_command(_command)


def invoke(program: str, arguments: Sequence[str], command: str | None = None) -> int:
    """Runs the command line and returns its exit code; with ``command``, the arguments are that command's."""
    entry: click.Command = app if command is None else app.commands[command]
    try:
        result = entry.main(list(arguments), prog_name=program, standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return ExitCode.USAGE
    except (click.Abort, KeyboardInterrupt):
        return SIGNAL_BASE + signal.SIGINT
    except TfCollectiveError as error:
        sys.stderr.write(f"tfcollective: {error}\n")
        return next(code for kind, code in EXIT_CODES if isinstance(error, kind))
    return result if isinstance(result, int) else 0
