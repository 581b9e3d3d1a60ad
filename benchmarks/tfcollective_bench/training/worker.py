"""``python -m tfcollective_bench.training.worker TASK``: one training process. TASK is a :class:`TrainingTask` as JSON.

Trains with Keras's ``fit``, as users do. The first epoch is dropped: it holds tracing, first allocations and the
connection of what connects late.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tfcollective._base.settings import Settings
from tfcollective_bench.training.models import MODELS, ModelSpec
from tfcollective_bench.training.strategies import STRATEGIES, Strategy
from tfcollective_bench.training.task import Epoch, ProcessResult, TrainingTask, mark_line

__all__ = ["main"]

_SEED = 1
_POLL_S = 0.01


def main() -> int:
    """Trains as the task says and leaves the result in the task's directory; returns 0."""
    task = TrainingTask.from_text(sys.argv[1])
    _stay_on_cores(task)
    strategy = STRATEGIES[task.strategy](task)
    strategy.start()
    result = train(task, MODELS[task.model], strategy)
    path = Path(task.results) / f"{result.rank}.json"
    partial = path.with_suffix(".new")
    partial.write_text(result.to_text(), "utf-8")
    partial.replace(path)
    _wait_for_results(task)
    return 0


def train(task: TrainingTask, spec: ModelSpec, strategy: Strategy) -> ProcessResult:
    """Trains one dropped and ``task.epochs`` measured epochs."""
    from tfcollective_bench.training import networks

    with strategy.scope():
        model = networks.build_model(spec, _SEED)
        optimizer = strategy.optimizer(networks.build_optimizer(spec))
        evaluator = _HeldOut(model, *networks.held_out(spec))
        import tensorflow as tf

        model.compile(
            optimizer,
            tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            # Every runner the same way, and XLA cannot compile steps that communicate.
            jit_compile=False,
            steps_per_execution=task.steps_per_execution,
        )
    first_loss = evaluator.loss()
    watch = _make_watch(strategy, evaluator, spec.batch)
    model.fit(
        strategy.dataset(lambda *ranks: networks.dataset(spec, ranks)),
        epochs=1 + task.epochs,
        steps_per_epoch=strategy.steps(),
        callbacks=[*strategy.callbacks(), watch],
        verbose=0,
    )
    return ProcessResult(strategy.rank, first_loss, tuple(watch.epochs), _versions(strategy))


class _HeldOut:
    """The mean loss of a model on the held-out samples."""

    def __init__(self, model: Any, inputs: Any, labels: Any) -> None:
        self._model, self._inputs, self._labels = model, inputs, labels

    def loss(self) -> float:
        """Computed from the weights as they are now; no step function, so that no strategy takes part in it."""
        import tensorflow as tf

        logits = self._model(tf.constant(self._inputs), training=False)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=self._labels, logits=logits)
        return float(tf.reduce_mean(losses))


def _make_watch(strategy: Strategy, evaluator: _HeldOut, batch: int) -> Any:
    """The callback that takes the times. A function, because its base class needs TensorFlow."""
    import tensorflow as tf

    class Watch(tf.keras.callbacks.Callback):  # type: ignore[misc]  # Keras is not typed
        """Notes epochs only: for a hook on batches, Keras would fetch the loss of every step."""

        def __init__(self) -> None:
            super().__init__()
            self.epochs: list[Epoch] = []
            self._started = 0.0

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            del logs
            strategy.wait_for_all()
            if epoch > 0:
                _mark(strategy, "begin")
            self._started = time.perf_counter()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            del logs
            seconds = time.perf_counter() - self._started
            if epoch > 0:
                _mark(strategy, "end")
                self.epochs.append(Epoch(strategy.steps() * batch, seconds, evaluator.loss()))

    return Watch()


def _mark(strategy: Strategy, name: str) -> None:
    if strategy.rank == 0:
        sys.stdout.write(mark_line(name) + "\n")
        sys.stdout.flush()


def _stay_on_cores(task: TrainingTask) -> None:
    """Pins this process to its cores before any library makes threads, which inherit that."""
    if not task.cores:
        return
    rank = task.rank
    if rank is None:
        ours = Settings.load().task
        rank = 0 if ours is None else ours.index
    os.sched_setaffinity(0, task.cores[rank])


def _versions(strategy: Strategy) -> Mapping[str, str]:
    import numpy as np
    import tensorflow as tf

    keras = tf.keras.__version__ if hasattr(tf.keras, "__version__") else tf.__version__
    return {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "tensorflow": tf.__version__,
        "keras": keras,
        **strategy.versions(),
    }


def _wait_for_results(task: TrainingTask) -> None:
    """Waits until all processes have their results: some strategies take a peer's end for a failure."""
    expected = 1 if STRATEGIES[task.strategy].counts_all else task.size
    deadline = time.monotonic() + task.timeout
    while len(list(Path(task.results).glob("*.json"))) < expected and time.monotonic() < deadline:
        time.sleep(_POLL_S)  # the processes share nothing but this directory


if __name__ == "__main__":
    sys.exit(main())
