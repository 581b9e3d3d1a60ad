"""``tfcollective bench chaos``: an elastic job under faults of all kinds."""

from __future__ import annotations

import click

from tfcollective._cli.groups import GroupedCommand, group, option
from tfcollective_bench.cli.common import as_typed, json_option, measured, out_option, say

__all__ = ["chaos"]


@click.command(
    cls=GroupedCommand,
    params=[
        *group(
            "Measurement",
            option("-np", "--np", "ranks", type=int, metavar="N", default=4, help="Ranks on this host. [4]"),
            option("--seed", type=int, metavar="N", default=1, help="Of faults and data. [1]"),
            option("--every", type=float, metavar="S", default=15.0, help="Seconds between faults, on average. [15]"),
            option(
                "--framework", metavar="NAME", default="numpy", help="What ranks train with: numpy, tensorflow. [numpy]"
            ),
            option("--step-ms", type=float, metavar="MS", default=20.0, help="Least time of a step. [20]"),
            option("--references", type=int, metavar="N", default=20, help="Seeds to compare the loss with. [20]"),
        ),
        *group(
            "Duration",
            option("--minutes", type=float, metavar="M", default=60.0, help="Time with faults. [60]"),
            option("--calm", type=float, metavar="S", default=0.0, help="Time without, before and after. [a tenth]"),
            option("--hang", type=float, metavar="S", default=60.0, help="No step for so long is a hang. [60]"),
        ),
        *group(
            "Output",
            out_option("chaos"),
            json_option,
            option("--keep", is_flag=True, help="Keep the journals and the output of the jobs, and say where."),
        ),
    ],
    short_help="An elastic job under faults of fifteen kinds.",
    epilog="""\b
Examples:
  tfcollective bench chaos --minutes 5
  tfcollective bench chaos --minutes 60 --seed 7 --out results
  tfcollective bench chaos --framework tensorflow -np 3""",
)
def chaos(
    ranks: int,
    seed: int,
    every: float,
    framework: str,
    step_ms: float,
    references: int,
    minutes: float,
    calm: float,
    hang: float,
    out: str | None,
    as_json: bool,
    keep: bool,
) -> int:
    """Disturbs an elastic job with a fault every 15 s on average, of fifteen kinds, and compares it with an
    undisturbed one: speed, result, and what it leaves behind.

    The exit code is 1 if anything is not as it must be. A job that hangs or ends too soon leaves its directory, with
    the stacks of all ranks.
    """
    from tfcollective_bench.chaos.options import ChaosOptions
    from tfcollective_bench.chaos.pages import overview, sections
    from tfcollective_bench.chaos.run import checks, run_chaos

    options = ChaosOptions(minutes, ranks, seed, every, framework, step_ms, calm, hang, references, keep)
    report = measured(
        lambda: run_chaos(options, as_typed(), say), overview, sections, out=out, as_json=as_json, stem="chaos"
    )
    return 0 if all(check.passed for check in checks(report)) else 1
