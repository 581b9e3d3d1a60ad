"""Hooks of a session that trains together with other ranks."""

from __future__ import annotations

import time
from typing import Any

import tensorflow as tf

from tfcollective import _runtime as runtime
from tfcollective._base.errors import InvalidArgumentError, StateError
from tfcollective._runtime.step_rate import StepRate
from tfcollective.tensorflow import BroadcastGlobalVariablesHook

_REDUCING = frozenset(
    {
        "TfcollectiveAllgather",
        "TfcollectiveAllreduce",
        "TfcollectiveBucketStart",
        "TfcollectiveGroupedAllreduce",
        "TfcollectiveReducescatter",
    }
)


class BroadcastHook(BroadcastGlobalVariablesHook):
    """Gives all ranks rank 0's variables, initialised or restored; and lets no session start over on one rank alone."""

    def __init__(self) -> None:
        super().__init__(0)
        self._done = False

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Broadcasts, the first time."""
        if self._done and runtime.size() > 1 and not runtime.get_communicator().info().broken:
            raise StateError("this rank's training session ended and was made again, the other ranks' were not")
        super().after_create_session(session, coord)
        self._done = True


class ReductionCheckHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]  # TensorFlow is not typed
    """Refuses to train a graph in which no gradient is reduced: ranks would drift apart."""

    def begin(self) -> None:
        """Looks through the graph."""
        if runtime.size() > 1 and not _reduces(tf.compat.v1.get_default_graph()):
            raise InvalidArgumentError(
                "estimator: no gradient in its model_fn is reduced over the ranks: wrap the optimizer there with "
                "tfcollective.tensorflow.DistributedOptimizer"
            )


class StepRateHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]  # TensorFlow is not typed
    """Shows the training step and the steps a second in ``tfcollective status``, and in MLflow where it is used."""

    def begin(self) -> None:
        """Finds the training step."""
        self._tensor = tf.compat.v1.train.get_or_create_global_step()
        self._step = 0
        self._rate = StepRate(runtime.publish, lambda: self._step)

    def before_run(self, run_context: Any) -> Any:
        """Asks for the training step."""
        return tf.compat.v1.train.SessionRunArgs(self._tensor)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """A step is done."""
        self._step = int(run_values.results)
        self._rate.step()

    def end(self, session: Any) -> None:
        """The last word."""
        self._rate.step(last=True)


class StepTimer(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]  # TensorFlow is not typed
    """Counts steps and their time.

    Attributes:
        steps: how many there were.
        seconds: the time spent in them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0
        self.seconds = 0.0
        self._began = 0.0

    def before_run(self, run_context: Any) -> None:
        """A step begins."""
        self._began = time.monotonic()

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """A step is done."""
        self.steps += 1
        self.seconds += time.monotonic() - self._began


def _reduces(graph: Any) -> bool:
    if any(operation.type in _REDUCING for operation in graph.get_operations()):
        return True
    library = graph.as_graph_def().library  # branches and loops are functions
    return any(node.op in _REDUCING for function in library.function for node in function.node_def)
