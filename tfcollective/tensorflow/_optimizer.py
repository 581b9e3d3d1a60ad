"""``DistributedOptimizer`` for the optimizers of ``tf.compat.v1``; ``tfcollective.keras`` has that for Keras's."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfcollective import _runtime as runtime
from tfcollective._base.errors import StateError, UnsupportedError
from tfcollective._runtime import ProcessSet
from tfcollective._runtime.communicator import Average, Op
from tfcollective.tensorflow._aggregation import Passes
from tfcollective.tensorflow._compression import Compression
from tfcollective.tensorflow._docstrings import documented
from tfcollective.tensorflow._gradients import GradientOptions, LocalVariables, reduce_gradients

# By graph: a rank may build graphs that the others do not, for example to evaluate.
_counts: weakref.WeakKeyDictionary[Any, Iterator[int]] = weakref.WeakKeyDictionary()
_eager_count = itertools.count()


@documented
def DistributedOptimizer(  # noqa: N802  # Horovod's name
    optimizer: Any,
    *,
    op: Op = Average,
    process_set: ProcessSet | None = None,
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    groups: int | Sequence[Sequence[Any]] | None = None,
    scale_local_gradients: bool = True,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    name: str | None = None,
    use_locking: bool = False,
) -> Any:
    """Wraps an optimizer so that it applies gradients reduced over all ranks.

    On ranks outside of `process_set` gradients stay as they are.

    Args:
        optimizer: a ``tf.compat.v1.train.Optimizer``. For a Keras optimizer see
            ``tfcollective.keras.DistributedOptimizer``.
        name: "Distributed" and the optimizer's class if None.
        use_locking: as for the optimizer.
        op: Average (default) or Sum.

    Raises:
        UnsupportedError: an argument, or a kind of optimizer, that is not supported.
    """
    options = GradientOptions.checked(locals())
    if not isinstance(optimizer, tf.compat.v1.train.Optimizer):
        raise UnsupportedError(
            f"optimizer: expected a tf.compat.v1.train.Optimizer, got {type(optimizer).__name__}; for an optimizer of "
            "Keras use tfcollective.keras.DistributedOptimizer"
        )
    passes = Passes(backward_passes_per_step, average_aggregated_gradients)
    return DistributedV1(optimizer, name, use_locking, options, passes)


def _new_scope() -> str:
    """Names an optimizer: equal on ranks that make the same ones, in the same order, in the same graph."""
    if tf.executing_eagerly():
        return f"v1_optimizer.eager.{next(_eager_count)}"
    count = _counts.setdefault(tf.compat.v1.get_default_graph(), itertools.count())
    return f"v1_optimizer.{next(count)}"


def _not_to_be_run(gradients: Sequence[Any]) -> list[Any]:
    """An evaluator's graph may hold the training operation, too, as long as it is not run: it has no ranks to reduce
    with, and without them it would train a model of its own."""
    text = f"this process is {runtime.task()}: it is outside the world and cannot train"
    with tf.control_dependencies([tf.raw_ops.Assert(condition=tf.constant(False), data=[tf.constant(text)])]):
        return [_copy(gradient) for gradient in gradients]


def _copy(gradient: Any) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(tf.identity(gradient.values), gradient.indices, gradient.dense_shape)
    return None if gradient is None else tf.identity(gradient)


class DistributedV1(tf.compat.v1.train.Optimizer):  # type: ignore[misc]  # TensorFlow is not typed
    """Reduces in ``compute_gradients``; everything else is the wrapped optimizer's."""

    def __init__(
        self, optimizer: Any, name: str | None, use_locking: bool, options: GradientOptions, passes: Passes
    ) -> None:
        super().__init__(name=name or f"Distributed{type(optimizer).__name__}", use_locking=use_locking)
        self._optimizer = optimizer
        self._options = options
        self._aggregation = passes.aggregation()
        self._due: Any = None
        self._local = LocalVariables()
        self._scope = _new_scope()

    def register_local_var(self, var: Any) -> None:
        """Leaves `var` to this rank: its gradient is not reduced."""
        self._local.add(var)

    def compute_gradients(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the wrapped optimizer's gradients, reduced over the ranks; zeros while backward passes are only added
        up.
        """
        pairs = self._optimizer.compute_gradients(*args, **kwargs)
        if not pairs:
            return pairs
        gradients, variables = zip(*pairs, strict=True)
        return list(zip(self._reduced(gradients, variables), variables, strict=True))

    def _reduced(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        if not tf.executing_eagerly() and runtime.is_initialized() and not runtime.task().is_trainer:
            return _not_to_be_run(gradients)

        def reduce(own: Sequence[Any]) -> list[Any]:
            return reduce_gradients(own, variables, scope=self._scope, options=self._options, local=self._local.keys())

        aggregation = self._aggregation
        if aggregation is None:
            return reduce(gradients)
        present = [gradient is not None for gradient in gradients]
        like = [tf.convert_to_tensor(gradient) for gradient in gradients if gradient is not None]
        self._due = aggregation.add(gradients, variables)

        def last() -> list[Any]:
            reduced = reduce(aggregation.take(present))
            return [tf.convert_to_tensor(gradient) for gradient in reduced if gradient is not None]

        results = iter(tf.nest.flatten(tf.cond(self._due, last, lambda: [tf.zeros_like(tensor) for tensor in like])))
        return [next(results) if there else None for there in present]

    def apply_gradients(self, *args: Any, **kwargs: Any) -> Any:
        """The wrapped optimizer's; with several backward passes a step, only after the last of them."""
        if self._aggregation is None:
            return self._optimizer.apply_gradients(*args, **kwargs)
        if self._due is None:
            raise StateError("apply_gradients: call compute_gradients of this optimizer first")
        if args:
            args = (list(args[0]), *args[1:])

        def update() -> Any:
            done = self._optimizer.apply_gradients(*args, **kwargs)
            with tf.control_dependencies([done] if done is not None and not tf.executing_eagerly() else []):
                return tf.constant(True)

        done = tf.cond(self._due, update, lambda: tf.constant(False))
        return None if tf.executing_eagerly() else done.op

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        """The wrapped optimizer's."""
        return self._optimizer.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> Any:
        """The wrapped optimizer's."""
        return self._optimizer.get_slot_names(*args, **kwargs)

    def variables(self, *args: Any, **kwargs: Any) -> Any:
        """The wrapped optimizer's."""
        return self._optimizer.variables(*args, **kwargs)
