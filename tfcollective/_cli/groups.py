"""Commands whose help shows their options in groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from tfcollective._base.options import Option


class GroupedOption(click.Option):
    """An option that stands under a heading in the help of a :class:`GroupedCommand`; see :func:`group`.

    Args:
        common: True if the short help shows it.
    """

    heading = "Options"

    def __init__(self, flags: Sequence[str], *, common: bool = False, **attributes: Any) -> None:
        super().__init__(flags, **attributes)
        self.common = common


class GroupedCommand(click.Command):
    """Writes one section of help for each group of options, in the order in which the groups first appear.

    Options of other kinds (those of decorators, ``--help``) stand under "Options", at the end.
    """

    def shows(self, ctx: click.Context, parameter: click.Parameter) -> bool:
        """True if the help that is asked for shows this option: every one."""
        del ctx, parameter
        return True

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """See :class:`click.Command`."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            shown = parameter.param_type_name == "option" and self.shows(ctx, parameter)
            record = parameter.get_help_record(ctx) if shown else None
            if record is not None:
                sections.setdefault(getattr(parameter, "heading", GroupedOption.heading), []).append(record)
        last = sections.pop(GroupedOption.heading, [])
        for heading, records in (*sections.items(), *([(GroupedOption.heading, last)] if last else [])):
            with formatter.section(heading):
                formatter.write_dl(records)


def option(*flags: str, **attributes: Any) -> GroupedOption:
    """An option; the arguments are those of ``click.option``, and ``common``."""
    return GroupedOption(flags, **attributes)


def group(heading: str, *options: GroupedOption) -> tuple[GroupedOption, ...]:
    """Puts the options under a heading of the command's help."""
    for one in options:
        one.heading = heading
    return options


class DeclaredOption(GroupedOption):
    """The option of the command line for one of a job or a platform, made from its declaration.

    Its value is text, which the job reads and checks: a flag is True where it is given, and means the opposite of the
    default.

    Args:
        declared: its declaration.
        field: a further name for it in a configuration file.
    """

    def __init__(self, declared: Option, field: str = "") -> None:
        kind, shown = declared.kind, f" [{declared.default}]" if declared.default else ""
        how: dict[str, Any] = (
            {"is_flag": True} if not kind.metavar else {"type": str, "metavar": declared.metavar or kind.metavar}
        )
        names = declared.flags if declared.opposite or not field else (*declared.flags, field)
        text = declared.help + shown
        super().__init__(names, common=declared.common, help=text, multiple=kind.many, nargs=kind.words, **how)
        self.declared, self.heading = declared, declared.group

    def given(self, values: Mapping[str, Any]) -> Any:
        """Returns what these values of a command's parameters say; None if they say nothing."""
        value = values.get(str(self.name))
        if value in (None, (), False):
            return None
        return not self.declared.opposite if value is True else value
