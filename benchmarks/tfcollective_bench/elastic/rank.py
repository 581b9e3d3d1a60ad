"""The program of each rank: tfcollective's or Horovod's elastic loop, or a program that is started again.

    python -m tfcollective_bench.elastic.rank ours|ours-traced|restart|horovod DIRECTORY MEGABYTES

Trains a Keras model of so many MB, which takes little computing, until the file ``stop`` is in DIRECTORY, and leaves
its journal there. ``ours`` and ``horovod`` commit after each step; ``ours-traced`` does one step before it joins, so
that the others do not wait while a new process traces it. ``restart`` keeps the weights in a file after every
20 steps, from which it goes on when it is started again. Runs in every environment that has TensorFlow and the library.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tfcollective_bench.journal import ENDS, READY, STARTS, STEP, Journal

__all__ = ["HOROVOD", "OURS", "RESTART", "STOP_FILE", "TRACED", "main"]

OURS, TRACED, RESTART, HOROVOD = "ours", "ours-traced", "restart", "horovod"
STOP_FILE = "stop"
_LAYER = 1024  # inputs and outputs of a layer: 4 MiB of float32
_LAYER_BYTES = 4 * _LAYER * _LAYER
_BACKUP_STEPS = 20
_RATE = 0.01


class _Training:
    """A model, its optimizer and its step, with a library's tape (Horovod's words)."""

    def __init__(self, library: Any, megabytes: int) -> None:
        import tensorflow as tf

        layers = max(1, round(megabytes * 1e6 / _LAYER_BYTES))
        dense = [tf.keras.layers.Dense(_LAYER) for _ in range(layers)]
        self.model = tf.keras.Sequential([tf.keras.layers.InputLayer((_LAYER,)), *dense])
        self.optimizer = tf.keras.optimizers.SGD(_RATE)
        self.optimizer.build(self.model.trainable_variables)
        self._library = library
        x = tf.random.stateless_normal((1, _LAYER), (library.rank(), 1))

        @tf.function(jit_compile=False)  # type: ignore[untyped-decorator]
        def step(stops: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(self.model(x) ** 2)
            gradients = library.DistributedGradientTape(tape).gradient(loss, self.model.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.model.trainable_variables, strict=True))
            return library.allreduce(stops, name="stops", op=library.Sum)

        self._step: Callable[[Any], Any] = step
        self._tf = tf

    def step(self, stop: bool) -> bool:
        """Does one step. Returns true if a rank wants to stop."""
        return float(self._step(self._tf.constant(float(stop)))) > 0


def _train(
    library: Any, training: _Training, state: Any, stop: Path, journal: Journal, done: Callable[[], None]
) -> None:
    """Steps until the job is to end."""
    rank, size = library.rank(), library.size()
    journal.note(READY, 1, rank, size, state.step)
    while True:
        ends = training.step(stop.exists())
        state.step += 1
        journal.note(STEP, 1, rank, size, state.step)
        if ends:
            return
        done()


def _elastic(library: Any, training: _Training, stop: Path, journal: Journal) -> None:
    state = library.elastic.TensorFlowKerasState(training.model, training.optimizer, step=0)

    @library.elastic.run  # type: ignore[untyped-decorator]
    def train(state: Any) -> None:
        _train(library, training, state, stop, journal, state.commit)

    train(state)


class _Backup:
    """The steps and weights of a program that is started again, in a file that rank 0 writes."""

    def __init__(self, library: Any, training: _Training, path: Path) -> None:
        import numpy as np

        self._np, self._library, self._training, self._path = np, library, training, path
        self.step = 0
        if path.exists():
            with np.load(path) as kept:
                self.step = int(kept["step"])
                training.model.set_weights([kept[f"weights{i}"] for i in range(len(training.model.weights))])
        library.broadcast_variables(training.model.variables, root_rank=0)

    def keep(self) -> None:
        """Writes the file every so many steps."""
        if self._library.rank() == 0 and self.step % _BACKUP_STEPS == 0:
            partial = self._path.with_suffix(".partial.npz")
            weights = {f"weights{i}": value for i, value in enumerate(self._training.model.get_weights())}
            self._np.savez(partial, step=self.step, **weights)
            partial.replace(self._path)


def main(arguments: Sequence[str]) -> None:
    """Trains; see the module."""
    kind, directory, megabytes = arguments[0], Path(arguments[1]), int(arguments[2])
    journal = Journal(directory, f"process:{os.getpid()}")
    journal.note(STARTS)
    if kind == HOROVOD:
        import horovod.tensorflow as library
    else:
        import tfcollective.horovod.tensorflow as library
    library.init()
    training = _Training(library, megabytes)
    stop = directory / STOP_FILE
    if kind == RESTART:
        backup = _Backup(library, training, directory / "backup.npz")
        _train(library, training, backup, stop, journal, backup.keep)
    else:
        if kind == TRACED:
            training.step(False)
        _elastic(library, training, stop, journal)
    journal.note(ENDS)


if __name__ == "__main__":
    main(sys.argv[1:])
