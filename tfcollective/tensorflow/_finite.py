"""Finds where NaN begins: in which step, on which rank, in the gradient of which variable.

A sum over the ranks carries one rank's NaN to all of them within a step. Only that rank's own gradients, before they
are reduced, show where it came from. A look at them costs a pass over their memory in every step, so it is an option.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfcollective import _runtime as runtime
from tfcollective._base.log import get_logger
from tfcollective._base.settings import variable
from tfcollective.tensorflow import _xla as xla
from tfcollective.tensorflow._gradients import variable_name
from tfcollective.tensorflow._variables import make_eagerly, tensorflow_variable

_LOG = get_logger(__name__)
_MOST_REPORTS = 5  # of one list of variables: a LossScaleOptimizer makes infinities on purpose


class FiniteCheck:
    """Looks at the gradients of one list of variables on this rank, if the option asks for it."""

    def __init__(self) -> None:
        self._steps: Any = None
        self._reports = 0

    def step(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Called in every step before `gradients` are reduced. Returns what the reduction comes after.

        Args:
            gradients: dense ones, IndexedSlices and None.
            variables: theirs.
        """
        if not runtime.settings().nan_check or not tf.compat.v1.executing_eagerly_outside_functions():
            return []
        if xla.is_compiled():
            _say_that_nothing_is_checked()
            return []
        found = [
            (variable_name(variable, index), variable, getattr(gradient, "values", gradient))
            for index, (gradient, variable) in enumerate(zip(gradients, variables, strict=True))
            if gradient is not None
        ]
        if not found:
            return []
        if self._steps is None:
            self._steps = make_eagerly(lambda: tf.constant(0, tf.int64), "tfcollective_finite_steps", "CPU:0")
        step = self._steps.assign_add(1, read_value=True)
        fine = tf.stack([tf.reduce_all(tf.math.is_finite(gradient)) for _, _, gradient in found])
        names, owners = [name for name, _, _ in found], [variable for _, variable, _ in found]

        def report(fine: Any, step: Any) -> Any:
            self._report(np.asarray(fine), names, owners, int(step))
            return np.int64(0)

        if tf.executing_eagerly():
            if not bool(tf.reduce_all(fine)):
                report(fine, step)
            return []
        return [
            tf.cond(
                tf.reduce_all(fine),
                lambda: tf.constant(0, tf.int64),
                lambda: tf.ensure_shape(tf.numpy_function(report, [fine, step], tf.int64), []),
            )
        ]

    def _report(self, fine: Any, names: Sequence[str], variables: Sequence[Any], step: int) -> None:
        """Logs one line on the rank where it begins. If weights hold NaN already, it began before."""
        if self._reports >= _MOST_REPORTS or not all(map(is_finite, variables)):
            return
        self._reports += 1
        wrong = [name for name, good in zip(names, fine, strict=True) if not good]
        _LOG.warning(
            "NaN or infinity begins on rank %d in step %d: in the gradient of %s, and of %d of %d variables in all; "
            "the weights were finite. Look at this rank's batch of that step",
            runtime.rank(),
            step,
            wrong[0],
            len(wrong),
            len(names),
        )


@functools.cache
def _say_that_nothing_is_checked() -> None:
    _LOG.warning("%s: steps that XLA compiles are not checked: use jit_compile=False", variable("nan_check"))


def is_finite(variable: Any) -> bool:
    """True if this variable, Keras's or TensorFlow's, holds neither NaN nor an infinity."""
    inner = tensorflow_variable(variable)
    if not inner.dtype.is_floating:
        return True
    with tf.device("CPU:0"):
        return math.isfinite(float(tf.reduce_sum(tf.cast(tf.convert_to_tensor(inner) * 0, tf.float32))))
