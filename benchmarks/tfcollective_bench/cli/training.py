"""``tfcollective bench training``: training, next to others."""

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
    prepare,
    ranks_of,
    result,
    show,
    write,
)

__all__ = ["training"]

_QUICK_STEPS = 20


@click.command(
    short_help="Training: samples a second, loss, bytes, processor time.",
    epilog="""\b
Examples:
  tfcollective bench training -np 2 --quick
  tfcollective bench training -np 2 --models mlp1024 --runners ours,horovod,unconnected --rounds 5 --out results
  tfcollective bench training -np 4 --link 1gbit,10gbit --models mlp1024""",
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
@deadline_option
@click.option("--out", metavar="DIR", help="Write training.json, training.html and PNGs there.")
@click.option(
    "--timeline/--no-timeline", default=True, show_default=True, help="With --out: record steps of tfcollective."
)
@json_option
@click.option("--quick", is_flag=True, help="Fewer steps and rounds: to see that everything runs.")
@baselines_option
@click.option(
    "--keras3-python", metavar="PATH", help="The interpreter of an environment with TensorFlow 2.16 or newer."
)
@click.option("--keras2-python", metavar="PATH", help="The interpreter of an environment with TensorFlow 2.15.")
@horovod_option
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
    prepare(out)
    with interruptible():
        report = run_training(options, as_typed(), show_progress)
    show(report, overview(report), as_json)
    write(report, sections, out, "training")
    return result(report)
