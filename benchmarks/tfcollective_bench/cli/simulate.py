"""``tfcollective bench simulate``: predictions for worlds that cannot be measured here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from tfcollective._cli.groups import option
from tfcollective_bench.cli.common import (
    as_typed,
    deadline_option,
    json_option,
    measured,
    names,
    numbers,
    out_option,
    say,
    sizes_of,
)

__all__ = ["simulate"]


@click.command(
    params=[
        click.Argument(["reports"], nargs=-1, metavar="[REPORT]..."),
        option("-np", "--np", "ranks", metavar="N,...", help="Worlds to predict. [8 to 4096, each twice the last]"),
        option(
            "--sizes", metavar="SIZE,...", default="4,64K,1M,8M,64M", help="Bytes of the buffers. [4,64K,1M,8M,64M]"
        ),
        option("--link", "links", metavar="RATE,...", default="1gbit,10gbit", help="Links. [1gbit,10gbit]"),
        option("--alpha", metavar="US", type=float, default=0.0, help="Latency in microseconds. [measured, or 50]"),
        option(
            "--copy",
            metavar="GB/S",
            type=float,
            default=0.0,
            help="Rate at which processors pass data between hosts. [measured, or 4]",
        ),
        option("--hosts", metavar="N,...", help="First measure worlds of N network namespaces; needs root."),
        option("--rounds", type=int, metavar="N", default=3, help="Turns of every world that is measured. [3]"),
        deadline_option,
        out_option("simulate"),
        json_option,
    ],
    short_help="Predicts all-reduce for worlds larger than this machine.",
    epilog="""\b
Examples:
  tfcollective bench simulate --link 1gbit
  sudo "$(command -v tfcollective)" bench simulate --hosts 2,4,8 --out results
  tfcollective bench simulate -np 64,1024 --sizes 1M,64M --alpha 20 results/allreduce.json""",
)
def simulate(
    reports: Sequence[str],
    ranks: str | None,
    sizes: str,
    links: str,
    alpha: float,
    copy: float,
    hosts: str | None,
    rounds: int,
    deadline: float,
    out: str | None,
    as_json: bool,
) -> int:
    """Predicts the time of all-reduce: it simulates the steps of every rank over a model of the network.

    REPORT is a JSON file of `bench allreduce --link`. The model is fitted to the smallest world in the reports, and the
    predictions are printed beside the measurements of all of them.
    """
    from tfcollective_bench.progress import show_progress
    from tfcollective_bench.report import load_report
    from tfcollective_bench.simulate.options import SimulateOptions
    from tfcollective_bench.simulate.pages import overview, sections
    from tfcollective_bench.simulate.run import run_simulation

    options = SimulateOptions(
        **({"ranks": numbers("-np", ranks)} if ranks is not None else {}),
        sizes=sizes_of(sizes, None, None, quick=False),
        links=names(links),
        alpha=alpha * 1e-6,
        copy=1e-9 / copy if copy else 0.0,
        hosts=numbers("--hosts", hosts) if hosts is not None else (),
        rounds=rounds,
        deadline_s=deadline,
    )
    given = [load_report(Path(path)) for path in reports]
    measured(
        lambda: run_simulation(options, given, as_typed(), show_progress, say),
        overview,
        sections,
        out=out,
        as_json=as_json,
        stem="simulate",
    )
    return 0
