"""Hooks for sessions of ``tf.compat.v1`` and for estimators."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfcollective import runtime
from tfcollective.tensorflow.variables import broadcast_global_variables


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]  # not typed
    """Gives all ranks the global variables of one, once a session exists: initialised or restored.

    Args:
        root_rank: whose values count.
        device: Horovod's; without effect.
    """

    def __init__(self, root_rank: int, device: str = "") -> None:
        del device  # and no super().__init__(): the class has none, and TensorFlow 2.15 warns of it as deprecated
        self._root_rank = root_rank
        self._operation: Any = None
        self._graph: Any = None

    def begin(self) -> None:
        """Adds the operation to the graph, once a graph."""
        graph = tf.compat.v1.get_default_graph()
        if self._graph is not graph:
            self._graph = graph
            self._operation = broadcast_global_variables(self._root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Runs it.

        A monitored session takes another rank's error for a preemption and makes a new session, again and again. The
        world does not come back: here the error is raised as one that ends the session.
        """
        del coord
        if runtime.size() > 1 and runtime.get_communicator().info().broken:
            runtime.get_communicator().barrier(name="new_session")  # raises what broke the world
        session.run(self._operation)
