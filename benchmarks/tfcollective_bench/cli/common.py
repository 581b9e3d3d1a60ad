"""What the commands of ``tfcollective bench`` share: readers of their options, and how they show reports."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click

from tfcollective.errors import ConfigError

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
    "names",
    "numbers",
    "prepare",
    "ranks_of",
    "result",
    "say",
    "show",
    "sizes_of",
    "write",
]

QUICK_ROUNDS = 3
_LONGEST_TURN_S = 7 * 86400.0


def _deadline(context: click.Context, option: click.Parameter, seconds: float) -> float:
    del context, option
    if not 0 < seconds <= _LONGEST_TURN_S:  # so is no "nan": a deadline that never passes
        raise ConfigError(f"--deadline: seconds above 0 and at most {_LONGEST_TURN_S:.0f}, not {seconds:g}")
    return seconds


deadline_option = click.option(
    "--deadline",
    type=float,
    default=300.0,
    show_default=True,
    callback=_deadline,
    help="Seconds that one turn may take.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print the whole report as JSON on stdout.")
baselines_option = click.option(
    "--baselines", metavar="DIR", help="Where tools/baselines.sh has put the others; .venv when omitted."
)
horovod_option = click.option(
    "--horovod-python", metavar="PATH", help="The interpreter of an environment that has Horovod."
)


@contextmanager
def interruptible() -> Iterator[None]:
    """While it is open, being asked to end (SIGTERM, SIGHUP) is like Ctrl-C: what was started is ended first."""

    def stop(number: int, frame: FrameType | None) -> None:
        del number, frame
        raise KeyboardInterrupt

    earlier = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


def say(text: str) -> None:
    """On stderr, where it does not mix with a report."""
    click.echo(text, err=True)


def as_typed() -> list[str]:
    """As typed."""
    return ["tfcollective", *sys.argv[1:]]


def show(report: Report, tables: Sequence[Table], as_json: bool) -> None:
    """The report on stdout: tables and what became of the runners, or JSON."""
    from tfcollective_bench.report import print_table

    if as_json:
        click.echo(json.dumps(report.to_json()))
        return
    for table in tables:
        print_table(table)
    for status in report.statuses:
        click.echo(f"{status.runner}: {status.state.value}: {status.detail}")


def prepare(out: str | None) -> None:
    """Makes the folder of --out before minutes of measuring rather than after them; ConfigError when it cannot be."""
    from tfcollective_bench.report import make_directory

    if out is not None:
        make_directory(Path(out))


def write(report: Report, sections: Callable[[Report], Sequence[Section]], out: str | None, stem: str) -> None:
    """The report's files, if they are wanted."""
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
    """What stands between commas."""
    return tuple(name.strip() for name in text.split(",") if name.strip()) if text else ()


def ranks_of(text: str) -> tuple[int, ...]:
    """The worlds that -np names."""
    return numbers("-np", text)


def numbers(option: str, text: str) -> tuple[int, ...]:
    """What stands between commas, as numbers; ConfigError names the option where it is something else."""
    found = names(text)
    if not found or not all(name.isdecimal() for name in found):
        raise ConfigError(f"{option}: expected numbers such as 2 or 2,4, not {text!r}")
    return tuple(int(name) for name in found)


def sizes_of(sizes: str | None, least: str | None, most: str | None, quick: bool) -> tuple[int, ...]:
    """The sizes in bytes that --sizes, or --min and --max, ask for."""
    from tfcollective_bench.allreduce.options import QUICK_SIZES, SIZES, sizes_between
    from tfcollective_bench.units import parse_bytes

    usual = QUICK_SIZES if quick else SIZES
    if sizes is not None:
        if least is not None or most is not None:
            raise ConfigError("give --sizes, or --min and --max, not both")
        return tuple(dict.fromkeys(sorted(parse_bytes(size) for size in names(sizes))))
    if least is None and most is None:
        return usual
    return sizes_between(
        usual[0] if least is None else parse_bytes(least), usual[-1] if most is None else parse_bytes(most)
    )
