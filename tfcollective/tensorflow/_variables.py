"""Variables: gives all ranks those of one, and makes those that a traced step needs in addition to its model's."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import tensorflow as tf

from tfcollective import _runtime as runtime
from tfcollective._base.errors import StateError
from tfcollective._runtime import ProcessSet
from tfcollective.tensorflow import _ops as ops
from tfcollective.tensorflow._border import collective
from tfcollective.tensorflow._derived import derive_anew_from
from tfcollective.tensorflow._gradients import variable_name
from tfcollective.tensorflow._names import operation_name


@collective
def broadcast_variables(variables: Iterable[Any], *, root_rank: int = 0, process_set: ProcessSet | None = None) -> Any:
    """Assigns to every variable its value on rank `root_rank`.

    Eagerly, ``Normalization`` layers then derive again what they compute with; a function that was traced before keeps
    the old values.

    Args:
        variables: TensorFlow's or Keras's; the same list, in the same order, on all ranks.

    Returns:
        Nothing eagerly; in a v1 graph the operation to run.
    """
    listed = list(variables)
    assigned = assign_all(listed, root_rank, None, process_set)
    if not tf.executing_eagerly():
        return tf.group(assigned)
    if assigned:
        derive_anew_from(listed)
    return None


def broadcast_global_variables(root_rank: int = 0) -> Any:
    """The operation that gives all global variables of the current v1 graph their values on rank `root_rank`.

    Args:
        root_rank: whose values count.

    Raises:
        StateError: called eagerly, where there is no such list of variables.
    """
    if tf.executing_eagerly():
        raise StateError(
            "broadcast_global_variables works in graphs of tf.compat.v1 only: "
            "call broadcast_variables(model.variables, root_rank=...)"
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank=root_rank)


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]  # not typed
    """Gives all ranks the global variables of one, once a session exists: initialised or restored.

    Args:
        root_rank: whose values count.
    """

    def __init__(self, root_rank: int = 0) -> None:
        # No super().__init__(): the class has none, and TensorFlow 2.15 warns of it as deprecated.
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
            runtime.get_communicator().barrier(name="new_session")  # raises the error that broke the world
        session.run(self._operation)


def assign_all(variables: Sequence[Any], root_rank: int, name: str | None, process_set: ProcessSet | None) -> list[Any]:
    members = runtime.members(process_set)
    root = members.place_of(root_rank, "root_rank")
    targets = [tensorflow_variable(variable) for variable in variables]
    if members.alone or not targets:
        return []
    prefix = operation_name(name, members.process_set_id)
    return [
        target.assign(
            ops.broadcast(
                tf.convert_to_tensor(target),
                root=root,
                name=f"{prefix}/{index}",
                label=variable_name(variable, index),
                process_set_id=members.process_set_id,
            )
        )
        for index, (target, variable) in enumerate(zip(targets, variables, strict=True))
    ]


def tensorflow_variable(variable: Any) -> Any:
    """The TensorFlow variable inside a Keras 3 variable."""
    inner = getattr(variable, "value", None)
    return inner if isinstance(inner, tf.Variable) else variable


def make_eagerly(initial: Callable[[], Any], name: str, device: str | None = None) -> Any:
    """A variable that is not trained, made eagerly in whatever trace of a ``tf.function`` it is needed.

    ``tf.init_scope`` alone leaves the graph but keeps the creators of variables that the ``tf.function`` has set, and
    in every trace but the first they refuse. They belong to a thread, so the variable is made on another one.

    Args:
        initial: makes the initial value.
        name: of the variable.
        device: where it lives; where TensorFlow puts variables if None.
    """

    def make() -> Any:
        with tf.device(device):
            return tf.Variable(initial(), trainable=False, name=name)

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(make).result()


class _CallableList(list):  # type: ignore[type-arg]
    """A list that a call gives, too. Keras 2 has had one since the method became a property."""

    def __call__(self) -> _CallableList:
        return self


def let_variables_be_called() -> None:
    """Makes what ``variables`` of Keras 3's optimizers gives a list that may be called.

    Does nothing while Keras is not imported, with Keras 2, and a second time.
    """
    optimizers = getattr(sys.modules.get("keras"), "optimizers", None)
    base = getattr(optimizers, "Optimizer", None)
    if not hasattr(base, "apply"):
        return
    for kind in (base, getattr(optimizers, "LossScaleOptimizer", None)):
        owner = next((c for c in getattr(kind, "__mro__", ()) if "variables" in vars(c)), None)
        found = None if owner is None else vars(owner)["variables"]
        if isinstance(found, property) and not isinstance(found, _CallableVariables):
            setattr(owner, "variables", _CallableVariables(found.fget, doc=found.__doc__))  # noqa: B010  # not known to be there


class _CallableVariables(property):
    """The property, with a list that may be called."""

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        found = super().__get__(instance, owner)
        return _CallableList(found) if type(found) is list else found
