"""The commands together, those that other distributions bring by their entry points among them."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points

import click

from tfcollective._base.errors import LaunchError, TfCollectiveError, UnsupportedError
from tfcollective._base.exit_codes import SIGNAL_BASE, ExitCode, code_of
from tfcollective._base.log import say
from tfcollective._base.version import __version__

GROUP = "tfcollective.commands"
# Each is imported when it is called: those that start jobs load the launchers of all platforms, for their options.
_OWN = {name: name for name in ("run", "check", "env", "migrate", "manifest", "agent", "job", "status", "dump", "web")}
_OWN |= {"logs": "status", "kill": "status"}  # command: its module
_EXTRAS = {"bench": "Measures all-reduce and training against other libraries."}  # command: its first line of help


class CommandGroup(click.Group):
    """A group that also has the commands of the entry points in ``tfcollective.commands``.

    A command of one of our extras is listed also where the extra is not installed; calling it raises UnsupportedError
    with the way to install it.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """See :class:`click.Command`. The error for an option of a command that is not named says which that is."""
        given = tuple(args)  # click takes the words out of the list
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            flag = given[0].partition("=")[0]
            for name in _OWN:
                command = own_command(name)
                if any(flag in option.opts for option in command.params):
                    advice = f"write {ctx.command_path} {name} {shlex.join(given)}"
                    raise click.UsageError(f"{flag} is an option of `{name}`: {advice}", ctx) from error
            raise

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of all commands, sorted."""
        return sorted({*super().list_commands(ctx), *_OWN, *_EXTRAS, *entry_points(group=GROUP).names})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name, or None; LaunchError when its distribution cannot be loaded."""
        own = super().get_command(ctx, cmd_name)
        if own is not None or cmd_name in _OWN:
            return own or own_command(cmd_name)
        for point in entry_points(group=GROUP, name=cmd_name):
            return _load(point)
        return _missing(cmd_name) if cmd_name in _EXTRAS else None


def own_command(name: str) -> click.Command:
    """The command of ours that has this name."""
    return _load(EntryPoint(name, f"{__package__}.{_OWN[name]}:{name}", GROUP))


def _load(point: EntryPoint) -> click.Command:
    try:
        command = point.load()
    except (ImportError, AttributeError) as error:
        raise LaunchError(f"the command {point.name!r} cannot be loaded: {error}") from error
    if not isinstance(command, click.Command):
        raise LaunchError(f"the entry point {point.name!r} of {GROUP} is not a command")
    return command


def _missing(name: str) -> click.Command:
    def explain(**_: object) -> None:
        raise UnsupportedError(
            f"`tfcollective {name}` is a distribution of its own, tfcollective-{name}, which is not installed: "
            f"pip install 'tfcollective[{name}]'"
        )

    words = click.Argument(["arguments"], nargs=-1, type=click.UNPROCESSED)
    everything = {"ignore_unknown_options": True, "help_option_names": []}
    return click.Command(name, callback=explain, params=[words], short_help=_EXTRAS[name], context_settings=everything)


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


def invoke(program: str, arguments: Sequence[str], command: str | None = None) -> int:
    """Runs the command line and returns its exit code; with ``command``, the arguments are that command's."""
    entry: click.Command = app if command is None else own_command(command)
    try:
        result = entry.main(list(arguments), prog_name=program, standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return ExitCode.USAGE
    except (click.Abort, KeyboardInterrupt):
        return SIGNAL_BASE + signal.SIGINT
    except TfCollectiveError as error:
        say(str(error))
        return code_of(error)
    return result if isinstance(result, int) else 0
