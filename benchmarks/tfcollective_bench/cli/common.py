"""Shared parts of the ``tfcollective bench`` commands: parsers of options, and the display of reports."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click

from tfcollective._base.codec import encode
from tfcollective._base.errors import ConfigError
from tfcollective._base.processes import not_ignored
from tfcollective._cli.groups import GroupedOption, option

if TYPE_CHECKING:
    from tfcollective_bench.model import Report
    from tfcollective_bench.report import Section, Table

__all__ = [
    "QUICK_ROUNDS",
    "as_typed",
    "baselines_option",
    "deadline_option",
    "horovod_option",
    "interruptible",
    "json_option",
    "measured",
    "names",
    "numbers",
    "out_option",
    "prepare",
    "ranks_of",
    "result",
    "say",
    "sizes_of",
]

QUICK_ROUNDS = 3
_LONGEST_TURN_S = 7 * 86400.0


def _deadline(context: click.Context, parameter: click.Parameter, seconds: float) -> float:
    del context, parameter
    if not 0 < seconds <= _LONGEST_TURN_S:  # also refuses "nan", a deadline that never passes
        raise ConfigError(f"--deadline: expected seconds above 0 and at most {_LONGEST_TURN_S:.0f}, got {seconds:g}")
    return seconds


deadline_option = option(
    "--deadline", type=float, default=300.0, metavar="S", callback=_deadline, help="Limit for one turn. [300]"
)
json_option = option("--json", "as_json", is_flag=True, help="Print the report as JSON instead of tables.")
baselines_option = option("--baselines", metavar="DIR", help="Directory that tools/baselines.sh has filled. [.venv]")
horovod_option = option(
    "--horovod-python", metavar="PATH", help="Interpreter of an environment with Horovod. [from --baselines]"
)


def out_option(stem: str) -> GroupedOption:
    """``--out`` of the command whose files are called `stem`."""
    return option("--out", metavar="DIR", help=f"Write {stem}.json, {stem}.html and PNGs to DIR.")


@contextmanager
def interruptible() -> Iterator[None]:
    """Makes SIGTERM and SIGHUP act like Ctrl-C while it is open: all processes that were started end first."""

    def stop(number: int, frame: FrameType | None) -> None:
        del number, frame
        raise KeyboardInterrupt

    earlier = {number: signal.signal(number, stop) for number in not_ignored((signal.SIGTERM, signal.SIGHUP))}
    try:
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


def say(text: str) -> None:
    """Prints to stderr, where the text does not mix with a report."""
    click.echo(text, err=True)


def as_typed() -> list[str]:
    """The command line as it was typed."""
    return ["tfcollective", *sys.argv[1:]]


def measured(
    measure: Callable[[], Report],
    overview: Callable[[Report], Sequence[Table]],
    sections: Callable[[Report], Sequence[Section]],
    *,
    out: str | None,
    as_json: bool,
    stem: str,
) -> Report:
    """The report of what a command measures: printed as tables, or as JSON, and written to --out as files `stem`.*.

    Raises ConfigError before anything is measured when the folder of --out cannot be made.
    """
    prepare(out)
    with interruptible():
        report = measure()
    _show(report, overview(report), as_json)
    _write(report, sections, out, stem)
    return report


def _show(report: Report, tables: Sequence[Table], as_json: bool) -> None:
    """Prints the report to stdout: tables and the state of every runner, or JSON."""
    from tfcollective_bench.report import print_table

    if as_json:
        click.echo(encode(report))
        return
    for table in tables:
        print_table(table)
    for status in report.statuses:
        click.echo(f"{status.runner}: {status.state.value}: {status.detail}")


def prepare(out: str | None) -> None:
    """Makes the folder of --out before anything is measured; ConfigError when that fails."""
    from tfcollective_bench.report import make_directory

    if out is not None:
        make_directory(Path(out))


def _write(report: Report, sections: Callable[[Report], Sequence[Section]], out: str | None, stem: str) -> None:
    """Writes the report's files if --out was given."""
    from tfcollective_bench.report import write_report

    if out is not None:
        for path in write_report(report, sections(report), Path(out), stem)[:2]:
            say(f"wrote {path}")


def result(report: Report) -> int:
    """The command's exit code: 1 when no requested runner could be measured."""
    if report.samples:
        return 0
    say("nothing was measured")
    return 1


def names(text: str | None) -> tuple[str, ...]:
    """The words between the commas."""
    return tuple(name.strip() for name in text.split(",") if name.strip()) if text else ()


def ranks_of(text: str) -> tuple[int, ...]:
    """The sizes of the worlds that -np lists."""
    return numbers("-np", text)


def numbers(flag: str, text: str) -> tuple[int, ...]:
    """The numbers between the commas; ConfigError names the option where a word is not a number."""
    found = names(text)
    if not found or not all(name.isdecimal() for name in found):
        raise ConfigError(f"{flag}: expected numbers such as 2 or 2,4, got {text!r}")
    return tuple(int(name) for name in found)


def sizes_of(sizes: str | None, least: str | None, most: str | None, quick: bool) -> tuple[int, ...]:
    """The sizes in bytes that --sizes, or --min and --max, ask for."""
    from tfcollective_bench.allreduce.options import QUICK_SIZES, SIZES, sizes_between
    from tfcollective_bench.units import parse_bytes

    usual = QUICK_SIZES if quick else SIZES
    if sizes is not None:
        if least is not None or most is not None:
            raise ConfigError("--sizes cannot be combined with --min and --max: give one or the other")
        return tuple(dict.fromkeys(sorted(parse_bytes(size) for size in names(sizes))))
    if least is None and most is None:
        return usual
    return sizes_between(
        usual[0] if least is None else parse_bytes(least), usual[-1] if most is None else parse_bytes(most)
    )
