"""``tfcollective bench``: measure all-reduce and training, next to others."""

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
    from tfcollective.bench.model import Report
    from tfcollective.bench.report import Section, Table

__all__ = ["bench", "interruptible"]

_QUICK_ROUNDS = 3
_QUICK_STEPS = 20


@click.group(
    epilog="""\b
Examples:
  tfcollective bench allreduce -np 2 --quick
  tfcollective bench allreduce -np 2,4 --sizes 4,64K,16M --out results
  tfcollective bench training -np 2 --quick
  tfcollective bench growth --quick
  tfcollective bench targets --quick"""
)
def bench() -> None:
    """Measures all-reduce and training side by side with others."""


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


@bench.command(
    epilog="""\b
Examples:
  tfcollective bench allreduce -np 2 --quick
  tfcollective bench allreduce -np 2 --runners c,openmpi-c,op,horovod --rounds 7 --out results
  tfcollective bench allreduce -np 2,4,8 --min 4K --max 64M --transport auto,tcp
  tfcollective bench allreduce --device cuda
  tfcollective run -np 4 --gpus-per-proc 1 tfcollective bench allreduce --device cuda"""
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
@click.option("--rounds", type=int, help="Turns of every runner; 5, or 3 with --quick.")
@click.option("--iterations", type=int, default=200, show_default=True, help="Calls per turn for small sizes.")
@click.option("--transport", default="auto", show_default=True, help="Ours: auto, shm, tcp; several: auto,tcp.")
@click.option(
    "--link",
    "links",
    default="loopback",
    show_default=True,
    help="loopback, or rates such as 1gbit: a host (network namespace) for every rank; several: a,b.",
)
@click.option("--caches", help="hot, cold or hot,cold (default; --quick: hot).")
@click.option("--deadline", type=float, default=300.0, show_default=True, help="Seconds that one turn may take.")
@click.option("--out", metavar="DIR", help="Write allreduce.json, allreduce.html and PNGs there.")
@click.option("--json", "as_json", is_flag=True, help="Print the whole report as JSON on stdout.")
@click.option("--quick", is_flag=True, help="Fewer sizes and rounds.")
@click.option("--baselines", metavar="DIR", help="Where tools/baselines.sh has put the others; .venv when omitted.")
@click.option("--horovod-python", metavar="PATH", help="The interpreter of an environment that has Horovod.")
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
        _only_in_jobs("-np", click.get_current_context().get_parameter_source("ranks"))
        turns = rounds if rounds is not None else _QUICK_ROUNDS if quick else 9
        return _allreduce_on_gpus(_sizes(sizes, least, most, quick), dtype, turns, iterations, as_json)
    from tfcollective.bench.allreduce.analysis import overview, sections
    from tfcollective.bench.allreduce.options import AllreduceOptions
    from tfcollective.bench.allreduce.run import run_allreduce
    from tfcollective.bench.progress import show_progress

    options = AllreduceOptions(
        ranks=_ranks(ranks),
        sizes=_sizes(sizes, least, most, quick),
        dtype=dtype,
        runners=_names(runners),
        rounds=rounds if rounds is not None else _QUICK_ROUNDS if quick else 5,
        iterations=iterations,
        transports=_names(transport),
        caches=_names(caches) or (("hot",) if quick else ("hot", "cold")),
        deadline_s=deadline,
        baselines=baselines or "",
        horovod_python=horovod_python or "",
        mpi_python=mpi_python or "",
        links=_names(links),
    )
    with interruptible():
        report = run_allreduce(options, _command(), show_progress)
    _show(report, overview(report), as_json)
    _write(report, sections, out, "allreduce")
    return 0


def _only_in_jobs(option: str, source: click.core.ParameterSource | None) -> None:
    if source is click.core.ParameterSource.COMMANDLINE:
        raise ConfigError(
            f"{option} does not go with --device cuda, which measures the ranks of the job that it runs in, or one: "
            "tfcollective run -np N --gpus-per-proc 1 tfcollective bench allreduce --device cuda"
        )


def _allreduce_on_gpus(sizes: Sequence[int], dtype: str, rounds: int, iterations: int, as_json: bool) -> int:
    """Rank 0 prints; exit code 1 where results were wrong."""
    from tfcollective.bench.allreduce.device import CupyDevice, device_table, measure_device, overheads
    from tfcollective.bench.allreduce.device_world import device_world

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


@bench.command(
    epilog="""\b
Examples:
  tfcollective bench training -np 2 --quick
  tfcollective bench training -np 2 --models mlp1024 --runners ours,horovod,unconnected --rounds 5 --out results
  tfcollective bench training -np 4 --link 1gbit,10gbit --models mlp1024"""
)
@click.option("-np", "--np", "processes", metavar="N,...", default="2", show_default=True, help="Training processes.")
@click.option("--models", metavar="NAME,...", help="mlp1024, mlp2048, convnet, embedding; all when omitted.")
@click.option("--runners", metavar="NAME,...", help="Who takes part; all when omitted.")
@click.option("--rounds", type=int, help="Turns of every job; 3, or 1 with --quick.")
@click.option("--steps", type=int, help="Measured steps of a process in a turn; the model's own number when omitted.")
@click.option("--epochs", type=int, help="Into how many epochs they are parted; 4, or 2 with --quick.")
@click.option("--link", "links", default="loopback", show_default=True, help="loopback, 1gbit, 10gbit; several: a,b.")
@click.option("--view", "views", default="processes,cores", show_default=True, help="What is equal for servers.")
@click.option("--servers", type=int, help="Most parameter servers to try; as many as processes when omitted.")
@click.option("--deadline", type=float, default=300.0, show_default=True, help="Seconds that one turn may take.")
@click.option("--out", metavar="DIR", help="Write training.json, training.html and PNGs there.")
@click.option("--timeline/--no-timeline", default=True, show_default=True, help="With --out: record steps of ours.")
@click.option("--json", "as_json", is_flag=True, help="Print the whole report as JSON on stdout.")
@click.option("--quick", is_flag=True, help="Fewer steps and rounds: to see that everything runs.")
@click.option("--baselines", metavar="DIR", help="Where tools/baselines.sh has put the others; .venv when omitted.")
@click.option(
    "--keras3-python", metavar="PATH", help="The interpreter of an environment with TensorFlow 2.16 or newer."
)
@click.option("--keras2-python", metavar="PATH", help="The interpreter of an environment with TensorFlow 2.15.")
@click.option("--horovod-python", metavar="PATH", help="The interpreter of an environment that has Horovod.")
def training(
    processes: str,
    models: str | None,
    runners: str | None,
    rounds: int | None,
    steps: int | None,
    epochs: int | None,
    links: str,
    views: str,
    servers: int | None,
    deadline: float,
    out: str | None,
    timeline: bool,
    as_json: bool,
    quick: bool,
    baselines: str | None,
    keras3_python: str | None,
    keras2_python: str | None,
    horovod_python: str | None,
) -> int:
    """Samples a second, loss, bytes on the wire and processor time of training: ours and others', in turns.

    Shaped links (1gbit, ...) need root: every process then has a network namespace of its own. What is not installed is
    named with the way to install it; what crashes or hangs, with the last line of its output.
    """
    from tfcollective.bench.progress import show_progress
    from tfcollective.bench.training.models import MODELS
    from tfcollective.bench.training.options import TrainingOptions
    from tfcollective.bench.training.pages import overview, sections
    from tfcollective.bench.training.run import run_training

    options = TrainingOptions(
        processes=_ranks(processes),
        models=tuple(MODELS) if models is None else _names(models),
        runners=_names(runners),
        links=_names(links),
        views=_names(views),
        rounds=rounds if rounds is not None else 1 if quick else 3,
        steps=steps if steps is not None else _QUICK_STEPS if quick else 0,
        epochs=epochs if epochs is not None else 2 if quick else 4,
        servers=servers or 0,
        deadline_s=deadline,
        baselines=baselines or "",
        keras3_python=keras3_python or "",
        keras2_python=keras2_python or "",
        horovod_python=horovod_python or "",
        timeline=timeline and out is not None,
    )
    with interruptible():
        report = run_training(options, _command(), show_progress)
    _show(report, overview(report), as_json)
    _write(report, sections, out, "training")
    return 0


@bench.command(
    epilog="""\b
Examples:
  tfcollective bench growth --quick
  tfcollective bench growth -np 2,4,8,16 --tensors 10,100,1000 --out results
  tfcollective bench growth --runners coordinator --agents 10,100,1000"""
)
@click.option("-np", "--np", "ranks", metavar="N,...", help="Worlds, on this host; 2,4,8,16, or 2,4 with --quick.")
@click.option("--tensors", metavar="N,...", default="10,100,1000", show_default=True, help="Gradients of a step.")
@click.option("--bytes", "total", metavar="SIZE", default="4M", show_default=True, help="All gradients together.")
@click.option("--agents", metavar="N,...", help="Agents that join at once; 10,100,1000, or 10,100 with --quick.")
@click.option("--runners", metavar="NAME,...", help="ours, horovod, coordinator; all when omitted.")
@click.option("--rounds", type=int, help="Turns of everybody; 3, or 1 with --quick.")
@click.option("--iterations", type=int, help="Steps per turn; 30, or 10 with --quick.")
@click.option("--deadline", type=float, default=300.0, show_default=True, help="Seconds that one turn may take.")
@click.option("--out", metavar="DIR", help="Write growth.json, growth.html and PNGs there.")
@click.option("--json", "as_json", is_flag=True, help="Print the whole report as JSON on stdout.")
@click.option("--quick", is_flag=True, help="Fewer ranks, agents and rounds.")
@click.option("--baselines", metavar="DIR", help="Where tools/baselines.sh has put the others; .venv when omitted.")
@click.option("--horovod-python", metavar="PATH", help="The interpreter of an environment that has Horovod.")
def growth(
    ranks: str | None,
    tensors: str,
    total: str,
    agents: str | None,
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
    """What a step costs as ranks and tensors grow, and what a coordinator costs as agents grow.

    What is not installed is named with the way to install it; what crashes or hangs, with the last line of its output.
    """
    from tfcollective.bench.growth.options import GrowthOptions
    from tfcollective.bench.growth.pages import overview, sections
    from tfcollective.bench.growth.run import run_growth
    from tfcollective.bench.progress import show_progress
    from tfcollective.bench.units import parse_bytes

    options = GrowthOptions(
        ranks=_ranks(ranks or ("2,4" if quick else "2,4,8,16")),
        tensors=_numbers("--tensors", tensors),
        total_bytes=parse_bytes(total),
        agents=_numbers("--agents", agents if agents is not None else "10,100" if quick else "10,100,1000"),
        runners=_names(runners),
        rounds=rounds if rounds is not None else 1 if quick else 3,
        iterations=iterations if iterations is not None else 10 if quick else 30,
        deadline_s=deadline,
        baselines=baselines or "",
        horovod_python=horovod_python or "",
    )
    with interruptible():
        report = run_growth(options, _command(), show_progress)
    _show(report, overview(report), as_json)
    _write(report, sections, out, "growth")
    return 0


@bench.command(
    epilog="""\b
Examples:
  tfcollective bench simulate --link 1gbit
  sudo tfcollective bench simulate --hosts 2,4,8 --out results
  tfcollective bench simulate -np 64,1024 --sizes 1M,64M --alpha 20 results/allreduce.json"""
)
@click.argument("reports", nargs=-1, metavar="[REPORT]...")
@click.option("-np", "--np", "ranks", metavar="N,...", help="Worlds to predict; 8 to 4096, each twice the last.")
@click.option("--sizes", metavar="SIZE,...", default="4,64K,1M,8M,64M", show_default=True, help="Bytes of the buffers.")
@click.option("--link", "links", metavar="RATE,...", default="1gbit,10gbit", show_default=True, help="Cables.")
@click.option("--alpha", metavar="US", type=float, default=0.0, help="Latency, microseconds; as measured when omitted.")
@click.option(
    "--copy", metavar="GB/S", type=float, default=0.0, help="What processors hand over; as measured when omitted."
)
@click.option("--hosts", metavar="N,...", help="Measure so many hosts (network namespaces) first; needs root.")
@click.option("--rounds", type=int, default=3, show_default=True, help="Turns of every world that is measured.")
@click.option("--deadline", type=float, default=300.0, show_default=True, help="Seconds that one turn may take.")
@click.option("--out", metavar="DIR", help="Write simulate.json, simulate.html and PNGs there.")
@click.option("--json", "as_json", is_flag=True, help="Print the whole report as JSON on stdout.")
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
    from tfcollective.bench.progress import show_progress
    from tfcollective.bench.report import load_report
    from tfcollective.bench.simulate.options import SimulateOptions
    from tfcollective.bench.simulate.pages import overview, sections
    from tfcollective.bench.simulate.run import run_simulation

    options = SimulateOptions(
        **({"ranks": _numbers("-np", ranks)} if ranks is not None else {}),
        sizes=_sizes(sizes, None, None, quick=False),
        links=_names(links),
        alpha=alpha * 1e-6,
        copy=1e-9 / copy if copy else 0.0,
        hosts=_numbers("--hosts", hosts) if hosts is not None else (),
        rounds=rounds,
        deadline_s=deadline,
    )
    given = [load_report(Path(path)) for path in reports]
    with interruptible():
        report = run_simulation(options, given, _command(), show_progress, _say)
    _show(report, overview(report), as_json)
    _write(report, sections, out, "simulate")
    return 0


@bench.command(
    epilog="""\b
Examples:
  tfcollective bench targets --quick
  tfcollective bench targets --out results --strict
  tfcollective bench targets results/benchmarks.json"""
)
@click.argument("reports", nargs=-1, metavar="[REPORT]...")
@click.option("--quick", is_flag=True, help="Under ten minutes: fewer sizes and rounds.")
@click.option("--only", metavar="GROUP,...", help="Measure only these groups of parts, for example allreduce.")
@click.option("--strict", is_flag=True, help="Exit code 1 when a must is missed.")
@click.option("--out", metavar="DIR", help="Write benchmarks.json and benchmarks.html there.")
@click.option("--baselines", metavar="DIR", help="Where tools/baselines.sh has put the others; .venv when omitted.")
def targets(
    reports: Sequence[str], quick: bool, only: str | None, strict: bool, out: str | None, baselines: str | None
) -> int:
    """Measures what the targets are about and prints which of them are met; or reads that from REPORTs (JSON files)."""
    from tfcollective.bench.report import Section, load_report, print_table, write_report
    from tfcollective.bench.scoreboard import missed, outcomes, scoreboard
    from tfcollective.bench.suite import merge, sections_of_suite

    if reports:
        report = merge([load_report(Path(path)) for path in reports], (), _command())
    else:
        report = _measure_targets(quick, only, baselines, out)
    found = outcomes(report.samples, statuses=report.statuses)
    print_table(scoreboard(found))
    _tell_what_did_not_run(report)
    if out is not None:
        parts_of_page = [Section("Targets", tables=(scoreboard(found, ""),)), *sections_of_suite(report)]
        for path in write_report(report, parts_of_page, Path(out), "benchmarks")[:2]:
            _say(f"wrote {path}")
    return 1 if strict and missed(found) else 0


def _measure_targets(quick: bool, only: str | None, baselines: str | None, out: str | None) -> Report:
    """Runs the parts; with `out`, what has been measured is written after every part."""
    from tfcollective.bench.progress import show_progress
    from tfcollective.bench.report import write_json
    from tfcollective.bench.suite import QUICK_S, Circumstances, parts_named, run_suite
    from tfcollective.clock import Deadline

    def keep(report: Report) -> None:
        if folder is not None:
            write_json(report, folder / "benchmarks.json")

    parts = parts_named(_names(only))
    folder = _made(out)
    until = Deadline.after(QUICK_S) if quick else Deadline.never()
    how = Circumstances(quick, baselines or "", _command(), show_progress, until)
    with interruptible():
        return run_suite(parts, how, _say, keep)


def _made(out: str | None) -> Path | None:
    """The folder, made before an hour of measuring rather than after it; ConfigError when it cannot be."""
    if out is None:
        return None
    try:
        Path(out).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot make the directory {out}: {error}") from error
    return Path(out)


def _tell_what_did_not_run(report: Report) -> None:
    """Runners that are missing or failed, and parts that were skipped."""
    for status in report.statuses:
        if status.state.value != "ran":
            click.echo(f"{status.runner}: {status.state.value}: {status.detail}")
    for note in report.notes:
        click.echo(note)


def _say(text: str) -> None:
    click.echo(text, err=True)


def _command() -> list[str]:
    """As typed."""
    return ["tfcollective", *sys.argv[1:]]


def _show(report: Report, tables: Sequence[Table], as_json: bool) -> None:
    """The report on stdout: tables and what became of the runners, or JSON."""
    from tfcollective.bench.report import print_table

    if as_json:
        click.echo(json.dumps(report.to_json()))
        return
    for table in tables:
        print_table(table)
    for status in report.statuses:
        click.echo(f"{status.runner}: {status.state.value}: {status.detail}")


def _write(report: Report, sections: Callable[[Report], Sequence[Section]], out: str | None, stem: str) -> None:
    """The report's files, if they are wanted."""
    from tfcollective.bench.report import write_report

    if out is not None:
        for path in write_report(report, sections(report), Path(out), stem)[:2]:
            _say(f"wrote {path}")


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip()) if text else ()


def _ranks(text: str) -> tuple[int, ...]:
    return _numbers("-np", text)


def _numbers(option: str, text: str) -> tuple[int, ...]:
    names = _names(text)
    if not names or not all(name.isdecimal() for name in names):
        raise ConfigError(f"{option}: expected numbers such as 2 or 2,4, not {text!r}")
    return tuple(int(name) for name in names)


def _sizes(sizes: str | None, least: str | None, most: str | None, quick: bool) -> tuple[int, ...]:
    from tfcollective.bench.allreduce.options import QUICK_SIZES, SIZES, sizes_between
    from tfcollective.bench.units import parse_bytes

    usual = QUICK_SIZES if quick else SIZES
    if sizes is not None:
        if least is not None or most is not None:
            raise ConfigError("give --sizes, or --min and --max, not both")
        return tuple(dict.fromkeys(sorted(parse_bytes(size) for size in _names(sizes))))
    if least is None and most is None:
        return usual
    return sizes_between(
        usual[0] if least is None else parse_bytes(least), usual[-1] if most is None else parse_bytes(most)
    )
