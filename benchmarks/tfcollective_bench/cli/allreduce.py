"""``tfcollective bench allreduce``: all-reduce by size, next to others, on processors or GPUs."""

from __future__ import annotations

from collections.abc import Sequence

import click

from tfcollective._base.codec import encode, to_document
from tfcollective._base.errors import ConfigError
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
    ranks_of,
    result,
    sizes_of,
)

__all__ = ["allreduce"]

_WITH_CUDA = {"device", "sizes", "least", "most", "dtype", "rounds", "iterations", "as_json", "quick"}


@click.command(
    cls=GroupedCommand,
    params=[
        *group(
            "Measurement",
            option("-np", "--np", "ranks", metavar="N,...", default="2", help="Ranks; 2,4 measures two worlds. [2]"),
            option(
                "--device",
                type=click.Choice(["cpu", "cuda"]),
                default="cpu",
                help="cuda: GPUs, compared with NCCL called from CuPy. [cpu]",
            ),
            option("--sizes", metavar="SIZE,...", help="Bytes of the buffers, such as 4,64K,16M. [4 to 64M]"),
            option("--min", "least", metavar="SIZE", help="Smallest size; each next one is 4 times as large."),
            option("--max", "most", metavar="SIZE", help="Largest size."),
            option("--dtype", metavar="TYPE", default="float32", help="Type of the elements. [float32]"),
            option(
                "--runners",
                metavar="NAME,...",
                help="c, ctypes, numpy, op, openmpi-c, openmpi, horovod, tensorflow. [all]",
            ),
            option(
                "--transport",
                metavar="T,...",
                default="auto",
                help="Transport of tfcollective: auto, shm or tcp. [auto]",
            ),
            option(
                *("--link", "links"),
                metavar="LINK,...",
                default="loopback",
                help="loopback, or rates such as 1gbit: a network namespace per rank; needs root. [loopback]",
            ),
            option("--caches", metavar="C,...", help="hot, cold. [both; hot with --quick]"),
        ),
        *group(
            "Duration",
            option("--rounds", type=click.IntRange(min=1), help="Turns of every runner. [5; 3 with --quick]"),
            option(
                "--iterations", type=click.IntRange(min=1), default=200, help="Calls per turn for small sizes. [200]"
            ),
            deadline_option,
            option("--quick", is_flag=True, help="Fewer sizes and rounds."),
        ),
        *group("Output", out_option("allreduce"), json_option),
        *group(
            "Other libraries",
            baselines_option,
            horovod_option,
            option(
                "--mpi-python",
                metavar="PATH",
                help="Interpreter of an environment with mpi4py. [from --baselines]",
            ),
        ),
    ],
    short_help="All-reduce by size: latency, bandwidth, processor time.",
    epilog="""\b
Examples:
  tfcollective bench allreduce -np 2 --quick
  tfcollective bench allreduce -np 2 --runners c,openmpi-c,op,horovod --rounds 7 --out results
  tfcollective bench allreduce -np 2,4,8 --min 4K --max 64M --transport auto,tcp
  tfcollective bench allreduce --device cuda
  tfcollective run -np 4 --gpus-per-proc 1 tfcollective bench allreduce --device cuda""",
)
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
    """Measures latency, bandwidth and processor time of all-reduce by size.

    tfcollective and other libraries take turns. A library that is not installed is listed with the way to install it,
    one that crashes or hangs with the last line of its output.
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
    report = measured(
        lambda: run_allreduce(options, as_typed(), show_progress),
        overview,
        sections,
        out=out,
        as_json=as_json,
        stem="allreduce",
    )
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
    """Measures on this rank's GPU; rank 0 prints. Returns 1 when a result was wrong."""
    from tfcollective_bench.allreduce.device import TYPES, CupyDevice, device_table, measure_device, overheads
    from tfcollective_bench.allreduce.device_world import device_world

    if dtype not in TYPES:
        raise ConfigError(f"--dtype: expected one of {', '.join(TYPES)} with --device cuda, got {dtype!r}")
    device = CupyDevice()
    with device_world() as world:
        rows = measure_device(world, device, sizes, dtype=dtype, rounds=rounds, iterations=iterations)
        if world.rank == 0 and as_json:
            found = [{**to_document(row), "overhead": row.overhead} for row in rows]
            click.echo(encode({"device": device.title, "dtype": dtype, "rows": found}))
        elif world.rank == 0:
            click.echo(
                "\n".join([device.title, device_table(rows, dtype), *(overheads(rows) if world.size == 1 else [])])
            )
    return 1 if any(row.wrong for row in rows) else 0
