"""``backward_passes_per_step``: the gradients of several backward passes of this process become one update."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tfcollective._base.errors import InvalidArgumentError
from tfcollective.tensorflow._gradients import variable_key
from tfcollective.tensorflow._variables import make_eagerly

Pairs = list[tuple[Any, Any]]


@dataclass(frozen=True)
class Passes:
    """The number of backward passes of an update, and whether it takes their mean or their sum.

    Attributes:
        count: the number of passes; InvalidArgumentError if it is no number above 0.
        average: the mean.
        by_keras: Keras adds them up (and takes the mean), as Keras 3 does.
    """

    count: int = 1
    average: bool = False
    by_keras: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.count, bool) or not isinstance(self.count, int) or self.count < 1:
            raise InvalidArgumentError(f"backward_passes_per_step: expected 1 or more, got {self.count!r}")

    def aggregation(self) -> GradientAggregation | None:
        """Returns what adds up the gradients of several passes where Keras does not."""
        return GradientAggregation(self.count, self.average) if self.count > 1 and not self.by_keras else None


class GradientAggregation:
    """Adds gradients up over a number of passes, for one optimizer.

    The sums live in variables of their own, which no model saves. IndexedSlices are added to a dense sum.

    Args:
        passes: how many make one update.
        average: the update takes the mean of the passes instead of their sum.
    """

    def __init__(self, passes: int, average: bool) -> None:
        self._passes = passes
        self._scale = 1.0 / passes if average else 1.0
        self._sums: list[Any] = []
        self._of: list[int] = []  # the keys of the variables whose gradients are in the sums
        self._counter: Any = None
        self._restored: Sequence[Any] = ()  # the counter and the sums to begin with, while there are no variables

    def values(self) -> list[Any]:
        """The counter and the sums (numpy arrays) between two updates; nothing where the next pass begins one."""
        if self._counter is None:
            return list(self._restored)
        if int(self._counter) % self._passes == 0:
            return []
        return [variable.numpy() for variable in (self._counter, *self._sums)]

    def restore(self, values: Sequence[Any]) -> bool:
        """Takes what :meth:`values` returned; none: the next pass begins an update. Returns whether they fit."""
        if self._counter is None:
            self._restored = list(values)
            return True
        variables = [self._counter, *self._sums]
        taken = values or [tf.zeros(variable.shape, variable.dtype) for variable in variables]
        if not _fit(taken, variables):
            return False
        for variable, value in zip(variables, taken, strict=True):
            variable.assign(value)
        return True

    def step(
        self, pairs: Iterable[tuple[Any, Any]], update: Callable[[Pairs], object], skip: Callable[[], object]
    ) -> Any:
        """Runs one pass: adds its gradients; the last pass of an update calls `update` with the totals, others `skip`.

        Both are called while a graph is built, each for its branch. Returns the operation in a v1 graph.
        """
        pairs = list(pairs)
        due = self.add([gradient for gradient, _ in pairs], [variable for _, variable in pairs])

        def last() -> Any:
            totals = self.take([gradient is not None for gradient, _ in pairs])
            with tf.control_dependencies([total for total in totals if total is not None]):
                done = update([(total, variable) for total, (_, variable) in zip(totals, pairs, strict=True)])
            return _after(done)

        return tf.cond(due, last, lambda: _after(skip()))

    def add(self, gradients: Sequence[Any], variables: Sequence[Any]) -> Any:
        """Adds one pass's gradients; returns whether it completes an update (bool, a scalar tensor)."""
        pairs = [pair for pair in zip(gradients, variables, strict=True) if pair[0] is not None]
        dense = [_dense(gradient, variable) for gradient, variable in pairs]
        self._make_variables(dense, [variable_key(variable) for _, variable in pairs])
        added = [total.assign_add(gradient) for total, gradient in zip(self._sums, dense, strict=True)]
        with tf.control_dependencies([operation for operation in added if operation is not None]):
            count = self._counter.assign_add(1)
        with tf.control_dependencies([count]):
            return tf.equal(self._counter.read_value() % self._passes, 0)

    def take(self, present: Sequence[bool]) -> list[Any]:
        """The totals, None where `present` is false; the next pass starts from zero."""
        totals = [total.read_value() for total in self._sums]
        with tf.control_dependencies(totals):
            zeroed = [total.assign(tf.zeros_like(value)) for total, value in zip(self._sums, totals, strict=True)]
        with tf.control_dependencies([operation for operation in zeroed if operation is not None]):
            scaled = iter([total * tf.cast(self._scale, total.dtype) for total in totals])
        return [next(scaled) if there else None for there in present]

    def _make_variables(self, gradients: Sequence[Any], keys: list[int]) -> None:
        if self._counter is not None:
            if keys != self._of:
                raise InvalidArgumentError(
                    f"backward_passes_per_step: {len(gradients)} variables have gradients in this pass, and not the "
                    f"same {len(self._of)} as in the first: each list of variables needs an optimizer of its own"
                )
            return
        for index, gradient in enumerate(gradients):
            if not gradient.shape.is_fully_defined():
                raise InvalidArgumentError(
                    f"backward_passes_per_step: gradient {index} has the shape {gradient.shape}, known only later"
                )
        restored, self._restored = self._restored, ()
        if restored and not _fit(restored[1:], gradients):
            raise InvalidArgumentError(
                f"backward_passes_per_step: {len(restored) - 1} gradients were restored, and do not fit the "
                f"{len(gradients)} of this pass: the model is another one than that of the backup"
            )
        counter, *sums = restored or [None] * (1 + len(gradients))
        self._counter = _variable(tf.TensorShape([]), tf.int64, "tfcollective_passes", counter)
        self._sums = [
            _variable(gradient.shape, gradient.dtype, "tfcollective_sum", value)
            for gradient, value in zip(gradients, sums, strict=True)
        ]
        self._of = keys


def _dense(gradient: Any, variable: Any) -> Any:
    """A tensor of the variable's shape, of which a trace with an unknown batch need not know all of."""
    tensor = tf.convert_to_tensor(gradient)
    tensor.set_shape(variable.shape)
    return tensor


def _after(done: object) -> Any:
    """Returns the result of both branches of a condition: a true tensor once `done` is."""
    waits = [part for part in tf.nest.flatten(done) if tf.is_tensor(part) or isinstance(part, tf.Operation)]
    with tf.control_dependencies(waits if not tf.executing_eagerly() else []):
        return tf.identity(tf.constant(True))


def _fit(values: Sequence[Any], tensors: Sequence[Any]) -> bool:
    return [tuple(value.shape) for value in values] == [tuple(tensor.shape) for tensor in tensors]


def _variable(shape: Any, dtype: Any, name: str, value: Any = None) -> Any:
    """A variable of the value, which is restored eagerly only; None: of zeros."""
    if tf.compat.v1.executing_eagerly_outside_functions():
        return make_eagerly(lambda: tf.zeros(shape, dtype) if value is None else tf.constant(value, dtype), name)
    with tf.init_scope():  # out of a loop or condition of the graph
        return tf.compat.v1.Variable(
            tf.zeros(shape, dtype),
            trainable=False,
            name=name,
            use_resource=True,
            collections=[tf.compat.v1.GraphKeys.LOCAL_VARIABLES],  # neither saved nor broadcast
        )
