"""``tfcollective bench scaling``: steps as ranks and tensors grow, coordinators as agents grow."""

from __future__ import annotations

import click

from tfcollective_bench.cli.common import (
    as_typed,
    baselines_option,
    deadline_option,
    horovod_option,
    interruptible,
    json_option,
    names,
    numbers,
    prepare,
    ranks_of,
    result,
    show,
    write,
)

__all__ = ["scaling"]


@click.command(
    short_help="What more ranks, tensors and agents cost.",
    epilog="""\b
Examples:
  tfcollective bench scaling --quick
  tfcollective bench scaling -np 2,4,8,16 --tensors 10,100,1000 --out results
  tfcollective bench scaling --runners coordinator --agents 10,100,1000
  tfcollective bench scaling --runners nodes --nodes 1000 --rounds 1""",
)
@click.option("-np", "--np", "ranks", metavar="N,...", help="Worlds, on this host; 2,4,8,16, or 2,4 with --quick.")
@click.option("--tensors", metavar="N,...", default="10,100,1000", show_default=True, help="Gradients of a step.")
@click.option("--bytes", "total", metavar="SIZE", default="4M", show_default=True, help="All gradients together.")
@click.option("--agents", metavar="N,...", help="Agents that join at once; 10,100,1000, or 10,100 with --quick.")
@click.option("--nodes", metavar="N,...", help="Simulated nodes; 100,1000, or 100 with --quick.")
@click.option("--ranks-per-node", type=int, default=8, show_default=True, help="Of each simulated node.")
@click.option("--busy", type=float, help="Seconds with the simulated nodes; 60, or 10 with --quick.")
@click.option("--runners", metavar="NAME,...", help="ours, horovod, coordinator, nodes; all when omitted.")
@click.option("--rounds", type=int, help="Turns of everybody; 3, or 1 with --quick.")
@click.option("--iterations", type=int, help="Steps per turn; 30, or 10 with --quick.")
@deadline_option
@click.option("--out", metavar="DIR", help="Write scaling.json, scaling.html and PNGs there.")
@json_option
@click.option("--quick", is_flag=True, help="Fewer ranks, agents and rounds.")
@baselines_option
@horovod_option
def scaling(
    ranks: str | None,
    tensors: str,
    total: str,
    agents: str | None,
    nodes: str | None,
    ranks_per_node: int,
    busy: float | None,
    runners: str | None,
    rounds: int | None,
    iterations: int | None,
    deadline: float,
    out: str | None,
    as_json: bool,
    quick: bool,
    baselines: str | None,
    horovod_python: str | None,
) -> int:
    """What a step costs as ranks and tensors grow, and what a coordinator costs as agents and nodes grow.

    What is not installed is named with the way to install it; what crashes or hangs, with the last line of its output.
    """
    from tfcollective_bench.progress import show_progress
    from tfcollective_bench.scaling.options import ScalingOptions
    from tfcollective_bench.scaling.pages import overview, sections
    from tfcollective_bench.scaling.run import run_scaling
    from tfcollective_bench.units import parse_bytes

    options = ScalingOptions(
        ranks=ranks_of(ranks or ("2,4" if quick else "2,4,8,16")),
        tensors=numbers("--tensors", tensors),
        total_bytes=parse_bytes(total),
        agents=numbers("--agents", agents if agents is not None else "10,100" if quick else "10,100,1000"),
        nodes=numbers("--nodes", nodes if nodes is not None else "100" if quick else "100,1000"),
        ranks_per_node=ranks_per_node,
        busy_s=busy if busy is not None else 10.0 if quick else 60.0,
        runners=names(runners),
        rounds=rounds if rounds is not None else 1 if quick else 3,
        iterations=iterations if iterations is not None else 10 if quick else 30,
        deadline_s=deadline,
        baselines=baselines or "",
        horovod_python=horovod_python or "",
    )
    prepare(out)
    with interruptible():
        report = run_scaling(options, as_typed(), show_progress)
    show(report, overview(report), as_json)
    write(report, sections, out, "scaling")
    return result(report)
