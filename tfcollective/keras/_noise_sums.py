"""The noise of gradients, from the norms before and after their reduction.

McCandlish et al. 2018, "An Empirical Model of Large-Batch Training" (arXiv 1812.06162), appendix A: with the squared
norms of gradients of two batch sizes, here a rank's and that of all ranks, the squared norm of the true gradient and
the trace of its covariance have estimates without bias. Their ratio has one, so each is added up over many steps first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfcollective import _runtime as runtime
from tfcollective._runtime.communicator import Sum
from tfcollective.tensorflow._functions import merged
from tfcollective.tensorflow._gradients import GradientOptions, variable_key
from tfcollective.tensorflow._helpers import size_in_graph
from tfcollective.tensorflow._variables import make_eagerly

_Reduce = Callable[[Sequence[Any], Sequence[Any]], list[Any]]


class NoiseSums:
    """The sums of the two estimates over the steps since :meth:`reset`."""

    def __init__(self) -> None:
        self._sums = make_eagerly(lambda: tf.zeros([2], tf.float64), "tfcollective_noise_sums", "CPU:0")
        # Stands for a variable whose gradient is the squared norm, so that this travels with the other gradients.
        self._square = make_eagerly(lambda: tf.constant(0.0), "tfcollective_squared_norm", "CPU:0")

    def reset(self) -> None:
        """Begins to add up."""
        self._sums.assign(tf.zeros([2], tf.float64))

    def scale(self) -> float:
        """Returns the noise scale in batches of one rank; infinite if the noise hides the gradient."""
        gradient, noise = self._sums.numpy().tolist()
        return noise / gradient if gradient > 0 else float("inf")

    def reduced(
        self,
        gradients: Sequence[Any],
        variables: Sequence[Any],
        options: GradientOptions,
        local: frozenset[int],
        reduce: _Reduce,
    ) -> list[Any]:
        """Returns the reduced gradients, and adds up the estimates of this step, on a member of the process set.

        Args:
            gradients: of this rank, one for each variable.
            variables: what they are the gradients of.
            options: how they are reduced.
            local: keys of the variables whose gradients are not.
            reduce: reduces gradients of variables.
        """
        members = runtime.members(options.process_set, outside=True)
        shared = [place for place, variable in enumerate(variables) if variable_key(variable) not in local]
        mine = _squared_norm([gradients[place] for place in shared])
        *reduced, small = reduce([*gradients, mine], [*variables, self._square])
        big = _squared_norm([reduced[place] for place in shared])
        small, big = tf.cast(small, tf.float64), tf.cast(big, tf.float64)
        size = tf.cast(size_in_graph(members), tf.float64)
        if options.op == Sum:
            small, big = small / size, big / size**2
        gradient = tf.math.divide_no_nan(size * big - small, size - 1)
        noise = tf.math.divide_no_nan(size * (small - big), size - 1)
        step = tf.stack([gradient, noise])
        self._sums.assign_add(tf.where(tf.reduce_all(tf.math.is_finite(step)), step, tf.zeros_like(step)))
        return reduced


def _squared_norm(gradients: Sequence[Any]) -> Any:
    parts = [merged(one).values if isinstance(one, tf.IndexedSlices) else one for one in gradients if one is not None]
    norms = [tf.reduce_sum(tf.math.square(tf.cast(part, tf.float32))) for part in parts]
    return tf.add_n(norms) if norms else tf.constant(0.0)
