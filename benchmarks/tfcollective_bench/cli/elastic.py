"""``tfcollective bench elastic``: how soon training continues when a rank is lost or comes."""

from __future__ import annotations

import click

from tfcollective._cli.groups import GroupedCommand, group, option
from tfcollective_bench.cli.common import (
    QUICK_ROUNDS,
    as_typed,
    baselines_option,
    deadline_option,
    horovod_option,
    json_option,
    measured,
    names,
    out_option,
    result,
)

__all__ = ["elastic"]


@click.command(
    cls=GroupedCommand,
    params=[
        *group(
            "Measurement",
            option("-np", "--np", "ranks", type=int, metavar="N", default=3, help="Ranks on this host. [3]"),
            option("--megabytes", type=int, metavar="MB", default=25, help="Size of the model. [25]"),
            option("--runners", metavar="NAME,...", help="ours, ours-traced, restart, horovod. [all]"),
        ),
        *group(
            "Duration",
            option("--rounds", type=int, metavar="N", help="Turns of every runner. [10; 3 with --quick]"),
            option("--calm", type=float, metavar="S", default=10.0, help="Training before each change. [10]"),
            deadline_option,
            option("--quick", is_flag=True, help="Fewer rounds."),
        ),
        *group("Output", out_option("elastic"), json_option),
        *group("Other libraries", baselines_option, horovod_option),
    ],
    short_help="How soon training continues when a rank is lost or comes.",
    epilog="""\b
Examples:
  tfcollective bench elastic --quick
  tfcollective bench elastic -np 3 --rounds 20 --out results
  tfcollective bench elastic --runners ours --megabytes 100""",
)
def elastic(
    ranks: int,
    megabytes: int,
    runners: str | None,
    rounds: int | None,
    calm: float,
    deadline: float,
    out: str | None,
    as_json: bool,
    quick: bool,
    baselines: str | None,
    horovod_python: str | None,
) -> int:
    """Measures the time from the SIGKILL of a rank to the next step of the others, and to its replacement's first one,
    and from a new slot to the first step of the larger world.

    A library that is not installed is listed with the way to install it, one that crashes or hangs with the last line
    of its output.
    """
    from tfcollective_bench.elastic.options import ElasticOptions
    from tfcollective_bench.elastic.pages import overview, sections
    from tfcollective_bench.elastic.run import run_elastic
    from tfcollective_bench.progress import show_progress

    options = ElasticOptions(
        ranks=ranks,
        megabytes=megabytes,
        runners=names(runners),
        rounds=rounds if rounds is not None else QUICK_ROUNDS if quick else 10,
        calm_s=calm,
        deadline_s=deadline,
        baselines=baselines or "",
        horovod_python=horovod_python or "",
    )
    report = measured(
        lambda: run_elastic(options, as_typed(), show_progress),
        overview,
        sections,
        out=out,
        as_json=as_json,
        stem="elastic",
    )
    return result(report)
