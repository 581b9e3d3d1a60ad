"""``tfcollective bench allreduce``: all-reduce by size, next to others, on processors or GPUs."""

from __future__ import annotations

import json
from collections.abc import Sequence

import click

from tfcollective.errors import ConfigError
from tfcollective_bench.cli.common import (
    QUICK_ROUNDS,
    as_typed,
    baselines_option,
    deadline_option,
    horovod_option,
    interruptible,
    json_option,
    names,
    prepare,
    ranks_of,
    result,
    show,
    sizes_of,
    write,
)

__all__ = ["allreduce"]

_WITH_CUDA = {"device", "sizes", "least", "most", "dtype", "rounds", "iterations", "as_json", "quick"}


@click.command(
    short_help="All-reduce by size: latency, bandwidth, processor time.",
    epilog="""\b
Examples:
  tfcollective bench allreduce -np 2 --quick
  tfcollective bench allreduce -np 2 --runners c,openmpi-c,op,horovod --rounds 7 --out results
  tfcollective bench allreduce -np 2,4,8 --min 4K --max 64M --transport auto,tcp
  tfcollective bench allreduce --device cuda
  tfcollective run -np 4 --gpus-per-proc 1 tfcollective bench allreduce --device cuda""",
)
@click.option("-np", "--np", "ranks", metavar="N,...", default="2", show_default=True, help="Ranks; worlds: 2,4.")
@click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    default="cpu",
    show_default=True,
    help="cuda: one GPU, ours beside NCCL called from CuPy; inside a job, its ranks' GPUs.",
)
@click.option("--sizes", metavar="SIZE,...", help="Bytes of the buffers, for example 4,64K,16M.")
@click.option("--min", "least", metavar="SIZE", help="Sizes from here to --max, each four times the last.")
@click.option("--max", "most", metavar="SIZE", help="See --min.")
@click.option("--dtype", default="float32", show_default=True, help="Element type.")
@click.option("--runners", metavar="NAME,...", help="Who takes part; all when omitted.")
@click.option("--rounds", type=click.IntRange(min=1), help="Turns of every runner; 5, or 3 with --quick.")
@click.option(
    "--iterations", type=click.IntRange(min=1), default=200, show_default=True, help="Calls per turn for small sizes."
)
@click.option("--transport", default="auto", show_default=True, help="Ours: auto, shm, tcp; several: auto,tcp.")
@click.option(
    "--link",
    "links",
    default="loopback",
    show_default=True,
    help="loopback, or rates such as 1gbit: a host (network namespace) for every rank; several: a,b.",
)
@click.option("--caches", help="hot, cold or hot,cold (default; --quick: hot).")
@deadline_option
@click.option("--out", metavar="DIR", help="Write allreduce.json, allreduce.html and PNGs there.")
@json_option
@click.option("--quick", is_flag=True, help="Fewer sizes and rounds.")
@baselines_option
@horovod_option
@click.option("--mpi-python", metavar="PATH", help="The interpreter of an environment that has mpi4py.")
def allreduce(
    ranks: str,
    device: str,
    sizes: str | None,
    least: str | None,
    most: str | None,
    dtype: str,
    runners: str | None,
    rounds: int | None,
    iterations: int,
    transport: str,
    links: str,
    caches: str | None,
    deadline: float,
    out: str | None,
    as_json: bool,
    quick: bool,
    baselines: str | None,
    horovod_python: str | None,
    mpi_python: str | None,
) -> int:
    """Latency, bandwidth and processor time of all-reduce by size: ours and others', in turns.

    What is not installed is named with the way to install it; what crashes or hangs, with the last line of its output.
    """
    if device == "cuda":
        _only_what_goes_with_cuda(click.get_current_context())
        turns = rounds if rounds is not None else QUICK_ROUNDS if quick else 9
        return _allreduce_on_gpus(sizes_of(sizes, least, most, quick), dtype, turns, iterations, as_json)
    from tfcollective_bench.allreduce.analysis import overview, sections
    from tfcollective_bench.allreduce.options import AllreduceOptions
    from tfcollective_bench.allreduce.run import run_allreduce
    from tfcollective_bench.progress import show_progress

    options = AllreduceOptions(
        ranks=ranks_of(ranks),
        sizes=sizes_of(sizes, least, most, quick),
        dtype=dtype,
        runners=names(runners),
        rounds=rounds if rounds is not None else QUICK_ROUNDS if quick else 5,
        iterations=iterations,
        transports=names(transport),
        caches=names(caches) or (("hot",) if quick else ("hot", "cold")),
        deadline_s=deadline,
        baselines=baselines or "",
        horovod_python=horovod_python or "",
        mpi_python=mpi_python or "",
        links=names(links),
    )
    prepare(out)
    with interruptible():
        report = run_allreduce(options, as_typed(), show_progress)
    show(report, overview(report), as_json)
    write(report, sections, out, "allreduce")
    return result(report)


def _only_what_goes_with_cuda(context: click.Context) -> None:
    for parameter in context.command.params:
        name = parameter.name or ""
        given = context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
        if given and name not in _WITH_CUDA:
            raise ConfigError(
                f"{parameter.opts[0]} does not go with --device cuda, which measures the ranks of the job that it runs "
                "in, or one: tfcollective run -np N --gpus-per-proc 1 tfcollective bench allreduce --device cuda"
            )


def _allreduce_on_gpus(sizes: Sequence[int], dtype: str, rounds: int, iterations: int, as_json: bool) -> int:
    """Rank 0 prints; exit code 1 where results were wrong."""
    from tfcollective_bench.allreduce.device import TYPES, CupyDevice, device_table, measure_device, overheads
    from tfcollective_bench.allreduce.device_world import device_world

    if dtype not in TYPES:
        raise ConfigError(f"--dtype: expected one of {', '.join(TYPES)} with --device cuda, got {dtype!r}")
    device = CupyDevice()
    with device_world() as world:
        rows = measure_device(world, device, sizes, dtype=dtype, rounds=rounds, iterations=iterations)
        if world.rank == 0 and as_json:
            click.echo(json.dumps({"device": device.title, "dtype": dtype, "rows": [row.to_json() for row in rows]}))
        elif world.rank == 0:
            click.echo(
                "\n".join([device.title, device_table(rows, dtype), *(overheads(rows) if world.size == 1 else [])])
            )
    return 1 if any(row.wrong for row in rows) else 0
