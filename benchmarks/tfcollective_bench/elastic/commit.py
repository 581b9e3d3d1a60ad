"""Measures the cost of a commit: a job of one rank trains with a commit after each step, and without, in turns.

    tfcollective run -np 1 --min-np 1 python -m tfcollective_bench.elastic.commit --weights 320 --optimizer adam

The exchange of one number between ranks is not in it. Steps come in blocks of each kind; the first two of a block,
which still use the memory of the other kind, do not count.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from typing import Any

import click

from tfcollective_bench.statistics import percentile

__all__ = ["main"]

_BLOCK_STEPS = 10
_UNCOUNTED_STEPS = 2
_RATE = 1e-6
_OPTIMIZERS = {"sgd": "SGD", "adam": "Adam"}


@click.command(context_settings={"show_default": True})
@click.option("--weights", type=click.IntRange(1), default=320, help="Number of weights.")
@click.option("--megabytes", type=click.FloatRange(0, min_open=True), default=100.0, help="All weights together, MB.")
@click.option("--optimizer", type=click.Choice(sorted(_OPTIMIZERS)), default="adam", help="Adam has 3 times the bytes.")
@click.option("--batch", type=click.IntRange(1), default=4, help="Samples of a step: makes it longer.")
@click.option("--blocks", type=click.IntRange(1), default=32, help=f"Pairs of blocks of {_BLOCK_STEPS} steps.")
def main(weights: int, megabytes: float, optimizer: str, batch: int, blocks: int) -> None:
    """Measure what a commit after each step of an elastic job costs."""
    import tensorflow as tf

    import tfcollective.tensorflow as tfc

    tfc.init()
    step, state = _training(tf, tfc, weights, megabytes, optimizer, batch)
    measured: dict[bool, list[tuple[float, float]]] = {False: [], True: []}

    @tfc.elastic.run
    def train(state: Any) -> None:
        for block in range(2 * blocks):
            commits = block % 4 in (1, 2)  # each kind comes first in every other pair
            steps = [_timed(step, state.commit if commits else None) for _ in range(_BLOCK_STEPS)]
            measured[commits] += steps[_UNCOUNTED_STEPS:]

    train(state)
    variables = len(state.model.weights) + len(state.optimizer.variables)
    click.echo(f"TensorFlow {tf.__version__}, {optimizer}, {variables} variables, {len(measured[True])} steps each:")
    for place, name in enumerate(("by the clock", "processor time")):
        without, with_commit = ([step[place] for step in measured[commits]] for commits in (False, True))
        click.echo(f"{name}: without {_quartiles(without)}, with a commit {_quartiles(with_commit)} ms")


def _training(
    tf: Any, tfc: Any, weights: int, megabytes: float, optimizer: str, batch: int
) -> tuple[Callable[[], Any], Any]:
    """A function that does one step, and the state."""
    from tfcollective.keras.elastic import KerasState

    units = max(1, round((megabytes * 1e6 / 4 / weights) ** 0.5))
    dense = [tf.keras.layers.Dense(units, use_bias=False) for _ in range(weights)]
    model = tf.keras.Sequential([tf.keras.layers.InputLayer((units,)), *dense])
    chosen = getattr(tf.keras.optimizers, _OPTIMIZERS[optimizer])(_RATE)
    chosen.build(model.trainable_variables)
    x = tf.random.stateless_normal((batch, units), (1, 1))

    @tf.function(jit_compile=False)  # type: ignore[untyped-decorator]
    def step() -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x) ** 2)
        gradients = tfc.DistributedGradientTape(tape).gradient(loss, model.trainable_variables)
        chosen.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return step, KerasState(model, chosen)


def _timed(step: Callable[[], Any], commit: Callable[[], None] | None) -> tuple[float, float]:
    """Milliseconds by the clock, and of all threads' processor time."""
    began, used = time.perf_counter(), _processor_s()
    float(step())
    if commit is not None:
        commit()
    return (time.perf_counter() - began) * 1e3, (_processor_s() - used) * 1e3


def _processor_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)  # to the microsecond; psutil counts ticks of 10 ms
    return used.ru_utime + used.ru_stime


def _quartiles(values: list[float]) -> str:
    return f"{percentile(values, 50):.1f} ({percentile(values, 25):.1f} to {percentile(values, 75):.1f})"


if __name__ == "__main__":
    main()
