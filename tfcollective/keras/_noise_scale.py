"""The callback that logs the gradient noise scale."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfcollective._base.errors import InvalidArgumentError, UnsupportedError
from tfcollective.keras._noise_sums import NoiseSums
from tfcollective.keras._optimizers import distributed_states
from tfcollective.keras._state import OptimizerState
from tfcollective.tensorflow._compression import Compression

_NAME = "noise_scale"


class GradientNoiseScale(tf.keras.callbacks.Callback):  # type: ignore[misc]  # Keras is not typed
    """Adds "noise_scale" to the log of an epoch: the batch size, in samples, up to which larger batches pay.

    Far below it twice the batch takes half the steps, far above it hardly fewer. It is the trace of the covariance of a
    sample's gradient over the squared norm of the mean gradient, as McCandlish et al. 2018 (arXiv 1812.06162, appendix
    A) estimate both, here from the norms of a rank's gradient and of the reduced one; the mean over the epoch's steps
    of each. Infinite where the noise hides the gradient. Of several optimizers each has a value, by its place.

    It costs two passes over the gradients and a reduction of one number a step, which travels with the gradients. With
    one rank there is nothing to compare, and nothing in the log. Other callbacks that use it come after this one.

    Args:
        batch_size: the samples behind a rank's gradient of one update, the same on all ranks: those of a batch, times
            the passes that are added up.

    Raises:
        InvalidArgumentError: `batch_size` is not above 0; in ``fit``: the model has no ``DistributedOptimizer``.
        UnsupportedError: in ``fit``: the optimizer compresses gradients, which would round the norms.
    """

    def __init__(self, batch_size: int) -> None:
        super().__init__()
        if batch_size <= 0:
            raise InvalidArgumentError(f"batch_size: expected a number above 0, got {batch_size}")
        self._batch_size = batch_size
        self._states: dict[str, OptimizerState] = {}

    def on_train_begin(self, logs: Any = None) -> None:
        """Lets the optimizers estimate, from the next trace of the training step on."""
        states = distributed_states(self.model)
        if not states:
            raise InvalidArgumentError(
                "GradientNoiseScale: the model has no DistributedOptimizer, whose gradients count"
            )
        if any(state.options.compression is not Compression.none for state in states.values()):
            raise UnsupportedError("GradientNoiseScale: not with compression, which rounds gradients and their norms")
        self._states = {place: state for place, state in states.items() if state.takes_part}
        new = [state for state in self._states.values() if state.noise is None]
        for state in new:
            state.noise = NoiseSums()
        if new:
            self.model.make_train_function(force=True)  # one that was traced before does not estimate

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Begins to add up."""
        for state in self._states.values():
            if state.noise is not None:
                state.noise.reset()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Logs what the steps of the epoch say."""
        for place, state in self._states.items():
            if logs is not None and state.noise is not None:
                name = _NAME if len(self._states) == 1 else f"{_NAME}_{place}"
                logs[name] = self._batch_size * state.noise.scale()
