"""Commands that other distributions bring: found by their entry points, loaded when they are called."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

import click

from tfcollective.errors import LaunchError, UnsupportedError

__all__ = ["GROUP", "CommandGroup"]

GROUP = "tfcollective.commands"
_EXTRAS = {"bench": "Measures all-reduce and training side by side with others."}  # command: its first line of help


class CommandGroup(click.Group):
    """A group that also has the commands of the entry points in ``tfcollective.commands``.

    A command of one of our extras is listed also where the extra is not installed; calling it raises UnsupportedError
    with the way to install it.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of all commands, sorted."""
        return sorted({*super().list_commands(ctx), *_EXTRAS, *entry_points(group=GROUP).names})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name, or None; LaunchError when its distribution cannot be loaded."""
        own = super().get_command(ctx, cmd_name)
        if own is not None:
            return own
        for point in entry_points(group=GROUP, name=cmd_name):
            return _load(point)
        return _missing(cmd_name) if cmd_name in _EXTRAS else None


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
