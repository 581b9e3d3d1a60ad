"""Commands whose help shows their options in groups."""

from __future__ import annotations

from typing import Any

import click


class GroupedOption(click.Option):
    """An option that stands under a heading in the help of a :class:`GroupedCommand`; see :func:`group`."""

    heading = "Options"


class GroupedCommand(click.Command):
    """Writes one section of help for each group of options, in the order in which the groups first appear.

    Options of other kinds (those of decorators, ``--help``) stand under "Options", at the end.
    """

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """See :class:`click.Command`."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx) if parameter.param_type_name == "option" else None
            if record is not None:
                sections.setdefault(getattr(parameter, "heading", GroupedOption.heading), []).append(record)
        last = sections.pop(GroupedOption.heading, [])
        for heading, records in (*sections.items(), *([(GroupedOption.heading, last)] if last else [])):
            with formatter.section(heading):
                formatter.write_dl(records)


def option(*flags: str, **attributes: Any) -> GroupedOption:
    """An option; the arguments are those of ``click.option``."""
    return GroupedOption(flags, **attributes)


def group(heading: str, *options: GroupedOption) -> tuple[GroupedOption, ...]:
    """Puts the options under a heading of the command's help."""
    for one in options:
        one.heading = heading
    return options
