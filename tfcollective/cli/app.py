"""The commands together, and the one table from errors to exit codes."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from tfcollective._version import __version__
from tfcollective.cli.agent import agent
from tfcollective.cli.bench import bench
from tfcollective.cli.check import check
from tfcollective.cli.env import env
from tfcollective.cli.run import run
from tfcollective.cli.status import status
from tfcollective.errors import ConfigError, CoordinatorError, RendezvousError, TfCollectiveError, UnsupportedError

__all__ = ["EXIT_CODES", "EXIT_USAGE", "invoke"]

EXIT_USAGE = 64
_EXIT_INTERNAL = 70
_EXIT_INTERRUPTED = 130

# The first row that fits decides.
EXIT_CODES: tuple[tuple[type[TfCollectiveError], int], ...] = (
    (ConfigError, EXIT_USAGE),
    (UnsupportedError, EXIT_USAGE),
    (RendezvousError, 69),
    (CoordinatorError, 75),
    (TfCollectiveError, _EXIT_INTERNAL),
)


@click.group(
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


for _command in (run, status, check, env, bench, agent):
    app.add_command(_command)


def invoke(program: str, arguments: Sequence[str], command: str | None = None) -> int:
    """Runs the command line and returns its exit code; with ``command``, the arguments are that command's."""
    entry: click.Command = app if command is None else app.commands[command]
    try:
        result = entry.main(list(arguments), prog_name=program, standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return EXIT_USAGE
    except (click.Abort, KeyboardInterrupt):
        return _EXIT_INTERRUPTED
    except TfCollectiveError as error:
        sys.stderr.write(f"tfcollective: {error}\n")
        return next(code for kind, code in EXIT_CODES if isinstance(error, kind))
    return result if isinstance(result, int) else 0
