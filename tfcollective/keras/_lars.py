"""LARS, which neither Keras 3 nor Keras 2 has: SGD whose gradients each variable scales by its own norms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf


@tf.keras.utils.register_keras_serializable(package="tfcollective")
class LARS(tf.keras.optimizers.SGD):  # type: ignore[misc]  # Keras is not typed
    """SGD with a rate for each variable: layer-wise adaptive rate scaling, for large batches.

    The gradient g of a variable w becomes ``(g + weight_decay * w) * trust * |w| / (|g| + weight_decay * |w| +
    epsilon)``, and SGD with momentum goes on with it (You, Gitman and Ginsburg 2017, arXiv 1708.03888). It is taken as
    it is for biases and normalization (variables with less than two dimensions) and where a norm is zero.

    Args:
        learning_rate: a number or a LearningRateSchedule.
        momentum: of SGD.
        weight_decay: part of the gradient, as in the paper; not of the variables that are left out.
        trust: the paper's trust coefficient.
        epsilon: added to the denominator.
        exclude: parts of the names of further variables to leave out.
        nesterov: of SGD.
        name: of the optimizer.
        kwargs: what Keras's optimizers take, such as ``use_ema`` and ``clipnorm``.
    """

    def __init__(
        self,
        learning_rate: Any = 0.1,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust: float = 0.001,
        epsilon: float = 1e-9,
        exclude: Sequence[str] = (),
        nesterov: bool = False,
        name: str = "LARS",
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate, momentum=momentum, nesterov=nesterov, name=name, **kwargs)
        self.decay = weight_decay  # Keras's own would shrink the variable apart from the gradient
        self.trust = trust
        self.epsilon = epsilon
        self.exclude = tuple(exclude)

    def update_step(self, gradient: Any, variable: Any, *rate: Any) -> None:
        """Updates a variable; Keras 3 gives the learning rate, too."""
        super().update_step(self._scaled(gradient, variable), variable, *rate)

    def get_config(self) -> dict[str, Any]:
        """Returns what makes an equal optimizer."""
        own = {"trust": self.trust, "epsilon": self.epsilon, "exclude": list(self.exclude)}
        return {**super().get_config(), "weight_decay": self.decay, **own}

    def _scaled(self, gradient: Any, variable: Any) -> Any:
        name = getattr(variable, "path", variable.name)
        if len(variable.shape) < 2 or any(part in name for part in self.exclude):
            return gradient
        # In half precision a sum of squares overflows.
        w, g = (tf.cast(tf.convert_to_tensor(value), tf.float32) for value in (variable, gradient))
        w_norm, g_norm = tf.norm(w), tf.norm(g)
        ratio = self.trust * w_norm / (g_norm + self.decay * w_norm + self.epsilon)
        scale = tf.where((w_norm > 0) & (g_norm > 0), ratio, 1.0)
        return tf.cast(scale * (g + self.decay * w), variable.dtype)
