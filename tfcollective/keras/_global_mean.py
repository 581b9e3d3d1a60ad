"""A loss that is a mean over what counts, as the tokens that are not padding, on ranks that have unequally many.

Each rank's gradient is that of its own mean. The plain average over the ranks is that of the mean over all tokens only
if all ranks have equally many. So a rank's gradients count by its share, as rows do in ``global_batch``: they are
multiplied by its number times the number of ranks over the number of all.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfcollective._base.errors import InvalidArgumentError, UnsupportedError
from tfcollective._runtime.communicator import Average
from tfcollective.keras._optimizers import distributed_states, innermost
from tfcollective.keras._state import OptimizerState, state_of
from tfcollective.tensorflow._variables import make_eagerly

_MEANS = ("sum_over_batch_size", "mean", "mean_with_sample_weight", "auto")


@tf.keras.utils.register_keras_serializable(package="tfcollective")
class GlobalMeanLoss(tf.keras.losses.Loss):  # type: ignore[misc]  # Keras is not typed
    """A loss of Keras's, with gradients that are those of its mean over all ranks' tokens.

    For ``compile(loss=GlobalMeanLoss(SparseCategoricalCrossentropy(from_logits=True)))`` with a DistributedOptimizer,
    and ``fit``. What counts is what the loss's mean counts: elements that are not masked (``mask_zero``,
    ``ignore_class``); with reduction "mean_with_sample_weight" their weights. In the log the loss is each rank's own.

    Args:
        loss: of Keras, whose reduction is a mean.
        name: of the loss; that of `loss` if None.

    Raises:
        InvalidArgumentError: `loss` is no loss that is a mean.
    """

    def __init__(self, loss: Any, name: str | None = None) -> None:
        if not isinstance(loss, tf.keras.losses.Loss) or getattr(loss, "reduction", None) not in _MEANS:
            raise InvalidArgumentError(
                f"loss: expected a loss of Keras with a mean as its reduction, as SparseCategoricalCrossentropy(), got "
                f"{loss!r}"
            )
        super().__init__(name=name or loss.name)
        self.loss = loss
        self._count: Any = None

    @property
    def count(self) -> Any:
        """A variable with the number of elements in the last batch's mean, float32."""
        if self._count is None:
            made = make_eagerly(lambda: tf.constant(0.0), "tfcollective_count")
            object.__setattr__(self, "_count", made)
        return self._count

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        """Returns the loss of this rank's batch, and notes how many elements it is a mean over."""
        self.count.assign(self._counted(y_true, y_pred, sample_weight))
        return self.loss(y_true, y_pred, sample_weight=sample_weight)

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """Computes the loss inside."""
        return self.loss.call(y_true, y_pred)

    def get_config(self) -> dict[str, Any]:
        """See Keras."""
        return {"loss": tf.keras.losses.serialize(self.loss), "name": self.name}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        """See Keras."""
        return cls(tf.keras.losses.deserialize(config["loss"]), config.get("name"))

    def _counted(self, y_true: Any, y_pred: Any, sample_weight: Any) -> Any:
        losses = self.loss.call(y_true, y_pred)
        masks = [getattr(one, "_keras_mask", None) for one in (y_pred, losses)]
        factors = [mask for mask in masks if mask is not None]
        if self.loss.reduction == "mean_with_sample_weight" and sample_weight is not None:
            factors.append(sample_weight)
        weights = tf.ones_like(losses, tf.float32)
        for factor in factors:
            weights *= _expanded(tf.cast(tf.convert_to_tensor(factor), tf.float32), weights)
        return tf.reduce_sum(weights)


def weigh_by_loss(model: Any) -> None:
    """Lets the optimizers of a compiled model weigh gradients by its :class:`GlobalMeanLoss`, if it has one.

    Raises:
        UnsupportedError: the model trains in a way for which one factor of all gradients is not right; says which.
    """
    losses = [one for one in tf.nest.flatten(getattr(model, "loss", None)) if one is not None]
    counting = [one for one in losses if isinstance(one, GlobalMeanLoss)]
    for state in distributed_states(model).values():
        state.counted = counting[0].count if counting else None
    if not counting:
        return
    if len(losses) > 1:
        raise UnsupportedError("loss: GlobalMeanLoss has to be the only loss: all gradients get its factor")
    for place, optimizer in innermost(model).items():
        found = state_of(optimizer)
        if found is not None:
            _check(place, optimizer, found)


def _check(place: str, optimizer: Any, state: OptimizerState) -> None:
    if state.divided:
        raise UnsupportedError("GlobalMeanLoss: DataParallel counts masks and weights by itself: leave it out")
    if state.options.op != Average:
        raise UnsupportedError(f"{place}: with GlobalMeanLoss gradients are averaged: use op=Average")
    if state.passes.count > 1 or getattr(optimizer, "gradient_accumulation_steps", None):
        raise UnsupportedError(
            f"{place}: with GlobalMeanLoss each batch is one update: leave out backward_passes_per_step and "
            "gradient_accumulation_steps"
        )


def _expanded(factor: Any, weights: Any) -> Any:
    while factor.shape.rank < weights.shape.rank:
        factor = factor[..., tf.newaxis]
    return factor
