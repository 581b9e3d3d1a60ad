"""``tfcollective bench scaling``: steps by ranks and tensors, coordinators by agents and nodes."""

from __future__ import annotations

import click

from tfcollective._cli.groups import GroupedCommand, group, option
from tfcollective_bench.cli.common import (
    as_typed,
    baselines_option,
    deadline_option,
    horovod_option,
    json_option,
    measured,
    names,
    numbers,
    out_option,
    ranks_of,
    result,
)

__all__ = ["scaling"]


@click.command(
    cls=GroupedCommand,
    params=[
        *group(
            "Measurement",
            option("-np", "--np", "ranks", metavar="N,...", help="Ranks on this host. [2,4,8,16; 2,4 with --quick]"),
            option("--tensors", metavar="N,...", default="10,100,1000", help="Gradients of a step. [10,100,1000]"),
            option("--bytes", "total", metavar="SIZE", default="4M", help="Size of all gradients together. [4M]"),
            option("--agents", metavar="N,...", help="Agents that join at once. [10,100,1000; 10,100 with --quick]"),
            option("--nodes", metavar="N,...", help="Simulated nodes. [100,1000; 100 with --quick]"),
            option("--ranks-per-node", type=int, metavar="N", default=8, help="Ranks of a simulated node. [8]"),
            option("--runners", metavar="NAME,...", help="ours, horovod, coordinator, nodes. [all]"),
        ),
        *group(
            "Duration",
            option("--rounds", type=int, metavar="N", help="Turns of every runner. [3; 1 with --quick]"),
            option("--iterations", type=int, metavar="N", help="Steps per turn. [30; 10 with --quick]"),
            option("--busy", type=float, metavar="S", help="Seconds that simulated nodes run. [60; 10 with --quick]"),
            deadline_option,
            option("--quick", is_flag=True, help="Fewer ranks, agents, nodes and rounds."),
        ),
        *group("Output", out_option("scaling"), json_option),
        *group("Other libraries", baselines_option, horovod_option),
    ],
    short_help="Costs of a step by ranks and tensors, of a coordinator by agents.",
    epilog="""\b
Examples:
  tfcollective bench scaling --quick
  tfcollective bench scaling -np 2,4,8,16 --tensors 10,100,1000 --out results
  tfcollective bench scaling --runners coordinator --agents 10,100,1000
  tfcollective bench scaling --runners nodes --nodes 1000 --rounds 1""",
)
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
    """Measures the cost of a step by ranks and tensors, and the cost of a coordinator by agents and nodes.

    A library that is not installed is listed with the way to install it, one that crashes or hangs with the last line
    of its output.
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
    report = measured(
        lambda: run_scaling(options, as_typed(), show_progress),
        overview,
        sections,
        out=out,
        as_json=as_json,
        stem="scaling",
    )
    return result(report)
