"""``tfcollective bench simulate``: predictions for worlds that are not there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from tfcollective_bench.cli.common import (
    as_typed,
    deadline_option,
    interruptible,
    json_option,
    names,
    numbers,
    prepare,
    say,
    show,
    sizes_of,
    write,
)

__all__ = ["simulate"]


@click.command(
    short_help="Predicts all-reduce on worlds that are not there.",
    epilog="""\b
Examples:
  tfcollective bench simulate --link 1gbit
  sudo "$(command -v tfcollective)" bench simulate --hosts 2,4,8 --out results
  tfcollective bench simulate -np 64,1024 --sizes 1M,64M --alpha 20 results/allreduce.json""",
)
@click.argument("reports", nargs=-1, metavar="[REPORT]...")
@click.option("-np", "--np", "ranks", metavar="N,...", help="Worlds to predict; 8 to 4096, each twice the last.")
@click.option("--sizes", metavar="SIZE,...", default="4,64K,1M,8M,64M", show_default=True, help="Bytes of the buffers.")
@click.option(
    "--link", "links", metavar="RATE,...", default="1gbit,10gbit", show_default=True, help="The hosts' links."
)
@click.option("--alpha", metavar="US", type=float, default=0.0, help="Latency, microseconds; as measured when omitted.")
@click.option(
    "--copy", metavar="GB/S", type=float, default=0.0, help="What processors hand over; as measured when omitted."
)
@click.option("--hosts", metavar="N,...", help="Measure so many hosts (network namespaces) first; needs root.")
@click.option("--rounds", type=int, default=3, show_default=True, help="Turns of every world that is measured.")
@deadline_option
@click.option("--out", metavar="DIR", help="Write simulate.json, simulate.html and PNGs there.")
@json_option
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
    """Predicts all-reduce on worlds that are not there: the steps of every rank, over a model of the network.

    REPORTs are JSON files of bench allreduce --link: the model is fitted to the smallest of their worlds, and
    predictions are printed next to all of them.
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
    prepare(out)
    with interruptible():
        report = run_simulation(options, given, as_typed(), show_progress, say)
    show(report, overview(report), as_json)
    write(report, sections, out, "simulate")
    return 0
