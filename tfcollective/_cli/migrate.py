"""``tfcollective migrate``: the names of Horovod that a script uses, and how they differ here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from tfcollective._base.errors import ConfigError
from tfcollective._base.settings import VARIABLES
from tfcollective._cli.horovod_script import Finding, Report, examine

_OURS = {row.alias.name: f"understood, as {row.name}" for row in VARIABLES if row.alias is not None}
_SET_BY_COMPAT = {
    *(f"HOROVOD_{word}{kind}" for word in ("", "LOCAL_", "CROSS_") for kind in ("RANK", "SIZE")),
    *("HOROVOD_HOSTNAME", "HOROVOD_ELASTIC"),
}


@click.command(
    short_help="Says what a script for Horovod has to change.",
    epilog="""\b
Examples:
  tfcollective migrate train.py
  tfcollective migrate src/*.py

\b
Exit code: 0, or 1 when a script uses a name that tfcollective does not have.""",
)
@click.argument("scripts", nargs=-1, required=True, type=click.Path(), metavar="SCRIPT...")
def migrate(scripts: Sequence[str]) -> int:
    """Says for each script what has to change, then lists the names of Horovod that it uses: which are the same,
    different or missing here.

    It reads the scripts and changes nothing. docs/from-horovod.md lists all names.
    """
    reports = [(script, _examined(Path(script))) for script in scripts]
    for script, report in reports:
        click.echo(f"{script}: {verdict(report)}")
    for script, report in reports:
        click.echo("\n".join(["", script, *_described(report)]))
    return 1 if any(_missing(report) for _, report in reports) else 0


def verdict(report: Report) -> str:
    """Says in one line how much there is to change."""
    if not report.imports:
        return "does not import horovod: nothing to change"
    missing, differ = _missing(report), [finding.name for finding in report.findings if finding.status == "different"]
    words = []
    if missing:
        words.append(f"does not run here as it is: tfcollective has no {', no '.join(missing)}")
    words.append(f"change {_count(len(report.imports), 'import')}")
    if differ:
        words.append(f"read the notes on {_count(len(differ), 'name')} that may behave differently")
    return "; ".join(words) + ("" if missing or differ else "; nothing else")


def _missing(report: Report) -> list[str]:
    """The modules and names that have no counterpart."""
    modules = [module for _, module, instead in report.imports if instead is None]
    return [*dict.fromkeys(modules), *(finding.name for finding in report.findings if finding.status == "not yet")]


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")


def _examined(script: Path) -> Report:
    try:
        return examine(script.read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError) as error:
        raise ConfigError(f"{script} cannot be read as a Python script: {error}") from error


def _described(report: Report) -> Iterator[str]:
    for line, module, instead in report.imports:
        yield f"  line {line}: {module} -> {instead or 'there is nothing like it'}"
    same = [finding for finding in report.findings if finding.status == "same" and not finding.note]
    if same:
        yield "  the same: " + ", ".join(dict.fromkeys(finding.name.rpartition(".")[2] for finding in same))
    for finding in report.findings:
        if finding not in same:
            yield _noted(finding)
    for name, lines in report.variables:
        how = (
            "set with tfcollective run --horovod-compat" if name in _SET_BY_COMPAT else _OURS.get(name, "has no effect")
        )
        yield f"  variable {name} ({_places(lines)}): {how}"


def _noted(finding: Finding) -> str:
    note = f": {finding.note}" if finding.note else ""
    return f"  {finding.status}: {finding.name} ({_places(finding.lines)}){note}"


def _places(lines: Sequence[int]) -> str:
    return ("line " if len(lines) == 1 else "lines ") + ", ".join(map(str, lines))
