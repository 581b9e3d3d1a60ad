"""Evaluates checkpoints of Keras models."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from tfcollective._base.errors import InvalidArgumentError
from tfcollective.auxiliary_tasks._checkpoints import KERAS, TENSORFLOW, Checkpoint, check_whole
from tfcollective.auxiliary_tasks._evaluator import Evaluation


class KerasEvaluation:
    """An ``evaluate`` for :func:`run_evaluator`.

    Args:
        data: a dataset, an ``(inputs, targets)`` tuple, or a function without arguments that returns either.
        model: a compiled and built model that takes the weights. Not needed for ``.keras`` files of compiled models.
        steps: how many batches; None: all.
        custom_objects: for loading ``.keras`` files.

    Raises:
        InvalidArgumentError: when called: the checkpoint needs a model, or the model is not compiled.
    """

    def __init__(
        self, data: Any, model: Any = None, steps: int | None = None, custom_objects: Mapping[str, Any] | None = None
    ) -> None:
        self._data = data
        self._model = model
        self._steps = steps
        self._custom_objects = custom_objects

    def __call__(self, checkpoint: Checkpoint) -> Evaluation:
        """Loads and evaluates `checkpoint`."""
        check_whole(checkpoint)
        model = self._loaded(checkpoint)
        if getattr(model, "loss", None) is None:
            raise InvalidArgumentError(f"{checkpoint.path}: the model is not compiled: give a compiled one as model")
        data = self._data() if callable(self._data) else self._data
        inputs, targets = data if isinstance(data, tuple) else (data, None)
        timer = _timer()
        metrics = model.evaluate(inputs, targets, steps=self._steps, verbose=0, callbacks=[timer], return_dict=True)
        return Evaluation(
            {k: float(v) for k, v in metrics.items()}, timer.steps, timer.seconds, _iterations(model, checkpoint)
        )

    def _loaded(self, checkpoint: Checkpoint) -> Any:
        import tensorflow as tf

        if checkpoint.kind == KERAS and self._model is None:
            return tf.keras.models.load_model(checkpoint.path, custom_objects=self._custom_objects)
        if self._model is None:
            raise InvalidArgumentError(f"{checkpoint.path} holds weights only: give a compiled and built model")
        if checkpoint.kind != TENSORFLOW:
            with _metrics_set_aside(self._model), warnings.catch_warnings():
                # The model need not have trained; an evaluation needs no state of its optimizer.
                warnings.filterwarnings("ignore", "Skipping variable loading for optimizer")
                self._model.load_weights(checkpoint.path)
            return self._model
        names = [name for name, _ in tf.train.list_variables(checkpoint.path)]
        below_model = any(name.startswith("model/") for name in names)  # tf.train.Checkpoint(model=...), or the model's
        target = tf.train.Checkpoint(model=self._model) if below_model else tf.train.Checkpoint(self._model)
        status = target.restore(checkpoint.path)
        status.assert_nontrivial_match()
        status.expect_partial()
        return self._model


@contextlib.contextmanager
def _metrics_set_aside(model: Any) -> Iterator[None]:
    """Keras 2 saves metrics with the weights, and refuses them where the model has not used its own alike."""
    aside = {name: vars(model)[name] for name in ("compiled_loss", "compiled_metrics") if name in vars(model)}
    for name in aside:
        setattr(model, name, None)
    try:
        yield
    finally:
        for name, value in aside.items():
            setattr(model, name, value)


def _timer() -> Any:
    """A callback that counts batches and their time."""
    import tensorflow as tf

    class Timer(tf.keras.callbacks.Callback):  # type: ignore[misc]  # Keras is not typed
        steps = 0
        seconds = 0.0
        _began = 0.0

        def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
            del batch, logs
            self._began = time.monotonic()

        def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
            del logs
            self.steps = batch + 1
            self.seconds += time.monotonic() - self._began

    return Timer()


def _iterations(model: Any, checkpoint: Checkpoint) -> int | None:
    """The training step: how often the optimizer in a ``.keras`` file has updated."""
    optimizer = getattr(model, "optimizer", None)
    if checkpoint.kind != KERAS or optimizer is None:
        return None
    iterations = int(getattr(optimizer, "inner_optimizer", optimizer).iterations)
    return iterations or None
