"""``tfcollective bench training``: training, next to others."""

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
    out_option,
    ranks_of,
    result,
)

__all__ = ["training"]

_QUICK_STEPS = 20


@click.command(
    cls=GroupedCommand,
    params=[
        *group(
            "Measurement",
            option("-np", "--np", "processes", metavar="N,...", default="2", help="Training processes. [2]"),
            option("--models", metavar="NAME,...", help="mlp1024, mlp2048, convnet, embedding. [all]"),
            option(
                "--runners",
                metavar="NAME,...",
                help="ours, ours-keras2, ours-bf16, ours-unmodified, horovod, mwms, ps, single, single-keras2, "
                "unconnected, unconnected-keras2, ours-unmodified-keras2. [all]",
            ),
            option(
                *("--link", "links"),
                metavar="LINK,...",
                default="loopback",
                help="loopback, or rates such as 1gbit: a network namespace per process; needs root. [loopback]",
            ),
            option(
                *("--view", "views"),
                metavar="VIEW,...",
                default="processes,cores",
                help="processes: parameter servers run in addition to the workers; cores: they replace workers. [both]",
            ),
            option("--servers", type=int, metavar="N", help="Most parameter servers to try. [as many as processes]"),
        ),
        *group(
            "Duration",
            option("--rounds", type=int, metavar="N", help="Turns of every job. [3; 1 with --quick]"),
            option(
                "--steps",
                type=int,
                metavar="N",
                help="Measured steps per process and turn. [by model; 20 with --quick]",
            ),
            option(
                "--epochs", type=int, metavar="N", help="Epochs that the steps are divided into. [4; 2 with --quick]"
            ),
            deadline_option,
            option("--quick", is_flag=True, help="Fewer steps and rounds: to see that everything runs."),
        ),
        *group(
            "Output",
            out_option("training"),
            option("--timeline/--no-timeline", default=True, help="With --out: draw some steps of tfcollective. [yes]"),
            json_option,
        ),
        *group(
            "Other libraries",
            baselines_option,
            option("--keras3-python", metavar="PATH", help="Interpreter with TensorFlow 2.16 or newer. [searched]"),
            option("--keras2-python", metavar="PATH", help="Interpreter with TensorFlow 2.15. [searched]"),
            horovod_option,
        ),
    ],
    short_help="Training: samples a second, loss, bytes, processor time.",
    epilog="""\b
Examples:
  tfcollective bench training -np 2 --quick
  tfcollective bench training -np 2 --models mlp1024 --runners ours,horovod,unconnected --rounds 5 --out results
  tfcollective bench training -np 4 --link 1gbit,10gbit --models mlp1024""",
)
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
    """Measures samples a second, loss, bytes sent and processor time of training.

    tfcollective and other libraries take turns. A library that is not installed is listed with the way to install it,
    one that crashes or hangs with the last line of its output.
    """
    from tfcollective_bench.progress import show_progress
    from tfcollective_bench.training.models import MODELS
    from tfcollective_bench.training.options import TrainingOptions
    from tfcollective_bench.training.pages import overview, sections
    from tfcollective_bench.training.run import run_training

    options = TrainingOptions(
        processes=ranks_of(processes),
        models=tuple(MODELS) if models is None else names(models),
        runners=names(runners),
        links=names(links),
        views=names(views),
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
    report = measured(
        lambda: run_training(options, as_typed(), show_progress),
        overview,
        sections,
        out=out,
        as_json=as_json,
        stem="training",
    )
    return result(report)
