"""Proves now and then that all replicas hold the same weights.

A forgotten broadcast, a gradient that escaped reduction, or a learning rate that one rank has changed makes replicas
drift apart without any error. At the start of the third step, then after twice as many steps each time, and then
rarely, each rank takes a 64-bit fingerprint of every variable's bytes; they are gathered and compared. The third step,
because Horovod's idiom broadcasts after the first.

The number of steps alone says when: ranks reach the end of an epoch or of ``fit`` after the same number of steps only
if nothing is wrong, and one that waited there for a comparison would hide from the others that it has ended early.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfcollective import _runtime as runtime
from tfcollective._base.errors import CollectiveMismatchError
from tfcollective._base.settings import REPLICA_CHECKS
from tfcollective._runtime import Members, ProcessSet
from tfcollective._runtime.communicator import Sum
from tfcollective.tensorflow import _ops as ops
from tfcollective.tensorflow import _xla as xla
from tfcollective.tensorflow._gradients import variable_key, variable_name
from tfcollective.tensorflow._helpers import rank_in_graph, size_in_graph
from tfcollective.tensorflow._replica_check import ReplicaCheck
from tfcollective.tensorflow._replicas import Comparison, Replicas
from tfcollective.tensorflow._variables import make_eagerly, tensorflow_variable

_PAUSE = 20  # steps; gradients that are never applied, as in a benchmark, must not be looked at each time
_HELD = -(1 << 62)
_LOWER = "_lower_using_switch_merge"  # of an op If: whether TensorFlow takes it apart
_CHANGED, _PRESENT, _ACTION = 0, 1, 2  # places in the last row of the compared array

_guards: weakref.WeakSet[ReplicaGuard] = weakref.WeakSet()


class ReplicaGuard:
    """Counts the steps of one list of variables in this process and checks when it is time.

    Args:
        scope: names the comparison between ranks.
        after_update: the steps are gradients, of which several may go into one update: check only once the variables
            have changed since the first step.
        process_set: whose ranks are compared; all if None.
        held: no checks until :meth:`restart`.
        check: what is compared, and what is done about differences.
        state: returns the other variables that a resync gives the first rank's values, such as an optimizer's.
    """

    def __init__(
        self,
        scope: str,
        *,
        after_update: bool = False,
        process_set: ProcessSet | None = None,
        held: bool = False,
        check: ReplicaCheck | None = None,
        state: Callable[[], Sequence[Any]] = tuple,
    ) -> None:
        self._name = f"{scope}/replica_check"
        self._after_update = after_update
        self._process_set = process_set
        self._begin = _HELD if held else 0
        self._how = check or ReplicaCheck()
        self._state = state
        self._steps: Any = None
        self._first: Any = None
        self._replicas: Replicas | None = None
        self._whole: Callable[[], Sequence[Any]] = tuple
        self._compiled: list[tuple[str, Any]] = []  # the variables of a step that XLA has compiled
        _guards.add(self)

    def hold(self) -> None:
        """Suspends checks until :meth:`restart`."""
        self._counter().assign(_HELD)

    def restart(self) -> None:
        """Counts from the next step on as the first."""
        self._counter().assign(0)

    def new_world(self) -> None:
        """Ranks that are new begin to count now: all do."""
        if self._steps is not None and int(self._steps) > _HELD // 2:
            self.restart()

    def step(self, variables: Sequence[Any]) -> list[Any]:
        """Called at the start of every step, before `variables` change. The same ones at every call.

        Returns what the reduction of this step must come after (control inputs): were a rank's gradients under way
        when the check fails on all ranks, it would wait for ranks that have left the step.
        """
        every = runtime.settings().replica_check_steps
        members = runtime.members(self._process_set, outside=True)
        if members.alone or not members.included:
            return []
        if every == 0 or not tf.compat.v1.executing_eagerly_outside_functions():
            return []
        named = [(variable_name(v, i), v) for i, v in enumerate(variables) if tf.TensorShape(v.shape).num_elements()]
        self._whole = lambda: [*(variable for _, variable in named), *self._state()]
        chosen = [pair for pair in named if self._how.compares(*pair)]
        if not chosen:
            return []
        if xla.is_compiled():  # it has no fingerprints: see after_compiled_step
            self._compiled = chosen
            return []
        with tf.device("CPU:0"):  # GPUs have no kernels for fingerprints, text and sums of uint8
            return [self._count_and_check(every, chosen, members)]

    def after_compiled_step(self) -> None:
        """Called eagerly after each step that XLA has compiled: counts it, and checks if it is time. Otherwise does
        nothing.
        """
        if self._compiled:
            members = runtime.members(self._process_set, outside=True)
            self._count_and_check(runtime.settings().replica_check_steps, self._compiled, members)

    def _count_and_check(self, every: int, named: Sequence[tuple[str, Any]], members: Members) -> Any:
        counter = self._counter()
        steps = counter.read_value()
        counter.assign_add(1)
        due = tf.logical_and(steps > 1, tf.logical_or(_is_power_of_two(steps), tf.equal(steps % every, 0)))
        if not self._after_update:
            return _rarely(due, lambda: self._check(named, members, steps), named)
        self._first_fingerprints(len(named))
        begins = tf.equal(steps, 0)
        look = lambda: tf.cond(begins, lambda: self._remember(named), lambda: self._check(named, members, steps))  # noqa: E731
        return _rarely(tf.logical_or(begins, due), look, named)

    def _remember(self, named: Sequence[tuple[str, Any]]) -> Any:
        with tf.control_dependencies([self._first_fingerprints(len(named)).assign(_fingerprints_of(named))]):
            return tf.constant(True)

    def _check(self, named: Sequence[tuple[str, Any]], members: Members, steps: Any) -> Any:
        mine = _fingerprints_of(named)
        changed = tf.constant(True) if self._first is None else tf.reduce_any(tf.not_equal(mine, self._first))
        everyone = _everyone(mine, changed, self._how.effective_action, self._name, members)
        updated = tf.reduce_any(tf.not_equal(everyone[:, -1, _CHANGED], 0))
        return tf.cond(updated, lambda: self._settle(everyone, steps, named, members), self._later)

    def _settle(self, everyone: Any, steps: Any, named: Sequence[tuple[str, Any]], members: Members) -> Any:
        """Settles the comparison in Python, also from a graph: it rarely runs, and would be some thousand ops for a
        large model.
        """
        if self._replicas is None:
            self._replicas = Replicas(self._name, members.process_set_id, self._how)
        replicas, whole = self._replicas, self._whole

        def settle(everyone: Any, steps: Any) -> str:
            return replicas.settle(compare_fingerprints(everyone), named, int(steps), whole)

        if tf.executing_eagerly():
            return _raise_if(settle(everyone.numpy(), steps))
        settled = _raise_if(tf.ensure_shape(tf.numpy_function(settle, [everyone, steps], tf.string), []))
        return _assigned_after(settled, whole()) if self._how.effective_action == "resync" else settled

    def _later(self) -> Any:
        """Postpones the check while nothing has changed: counts from the first step again, after a pause."""
        with tf.control_dependencies([self._counter().assign(-_PAUSE)]):
            return tf.constant(True)

    def _counter(self) -> Any:
        if self._steps is None:
            self._steps = make_eagerly(lambda: tf.constant(self._begin, tf.int64), "tfcollective_steps", "CPU:0")
        return self._steps

    def _first_fingerprints(self, count: int) -> Any:
        if self._first is None:
            self._first = make_eagerly(lambda: tf.zeros([count, 8], tf.uint8), "tfcollective_first", "CPU:0")
        return self._first


class ReplicaGuards:
    """The guards of one optimizer: one for each list of variables that it updates.

    Lists that take turns are counted apart. A common counter would be due at the same list each time, never compare the
    others, and with more than two lists look at one before the broadcast that follows the first step.

    Args:
        scope: names the comparisons between ranks.
        process_set: whose ranks are compared; all if None.
        check: what is compared, and what is done about differences.
        state: returns the other variables that a resync gives the first rank's values.
    """

    def __init__(
        self, scope: str, process_set: ProcessSet | None, check: ReplicaCheck, state: Callable[[], Sequence[Any]]
    ) -> None:
        self._scope = scope
        self._process_set = process_set
        self._check = check
        self._state = state
        self._held = False
        # By the variables' keys, with the variables: keys are unique while these live.
        self._guards: dict[tuple[int, ...], tuple[ReplicaGuard, Sequence[Any]]] = {}

    def hold(self) -> None:
        """Suspends checks until :meth:`restart`, also of lists that are new until then."""
        self._held = True
        for guard, _ in self._guards.values():
            guard.hold()

    def restart(self) -> None:
        """Counts from the next step of each list on as its first."""
        self._held = False
        for guard, _ in self._guards.values():
            guard.restart()

    def after_compiled_step(self) -> None:
        """Does what :meth:`ReplicaGuard.after_compiled_step` does, with the guards of all lists."""
        for guard, _ in self._guards.values():
            guard.after_compiled_step()

    def step(self, variables: Sequence[Any]) -> list[Any]:
        """Does what :meth:`ReplicaGuard.step` does, with the guard of these variables."""
        key = tuple(map(variable_key, variables))
        if key not in self._guards:
            name = f"{self._scope}/{len(self._guards)}"
            guard = ReplicaGuard(
                name, process_set=self._process_set, held=self._held, check=self._check, state=self._state
            )
            self._guards[key] = (guard, list(variables))
        return self._guards[key][0].step(variables)


def after_data(gradients: Sequence[Any]) -> Any:
    """A context for a guard's step: in a traced function it comes after one of the gradients.

    The function is also called where the data are at their end. Without the gradient a rank could count, and compare,
    before it sees that there is no batch, and another rank could see that first. The last gradient is ready early.
    """
    last = next((one for one in reversed(gradients) if one is not None), None)
    return tf.control_dependencies([] if last is None else [getattr(last, "values", last)])


def _rarely(condition: Any, body: Callable[[], Any], named: Sequence[tuple[str, Any]]) -> Any:
    """`body()` where `condition` holds, else True, at next to no cost where it does not.

    TensorFlow takes a condition in a function apart: in every step a switch for each variable that the body reads, and
    all ops of the body only to pass them over: of a step with 1000 variables that is 6 %. Kept whole it costs the
    passing of its arguments, but one op runs on one device: it is kept only where all variables are on the guard's.
    """
    result = tf.cond(condition, body, lambda: tf.constant(True))
    if not tf.executing_eagerly() and all(_is_with_guard(variable) for _, variable in named):
        _keep_whole(result)
    return result


def _is_power_of_two(number: Any) -> Any:
    return tf.equal(tf.bitwise.bitwise_and(number, number - 1), 0)


def _is_with_guard(variable: Any) -> bool:
    """True if a variable of TensorFlow's or Keras's lives on CPU:0. False where it is not known yet."""
    value = getattr(variable, "value", None)  # Keras 3: the variable inside; TensorFlow's own: a method
    holder = variable if value is None or callable(value) else value
    device = tf.DeviceSpec.from_string(str(getattr(holder, "device", None) or ""))
    return device.device_type == "CPU" and device.device_index == 0


def _keep_whole(result: Any) -> None:
    """Does nothing to a condition of a v1 graph, or of a TensorFlow that builds it in another way."""
    sources = [result.op, *(tensor.op for tensor in result.op.inputs)]
    for op in sources:
        if op.type in ("If", "StatelessIf"):
            op._set_attr(_LOWER, tf.compat.v1.AttrValue(b=False))
            return


def _everyone(mine: Any, changed: Any, action: str, name: str, members: Members) -> Any:
    """uint8[size, n + 1, 8]: each rank's fingerprints; in the last row whether they have changed, a 1, its action.

    A sum in which each rank has a place of its own: unlike an all-gather it also works while some ranks have joined.
    Their places stay zero.
    """
    code = REPLICA_CHECKS.index(action)
    flags = tf.stack([tf.cast(changed, tf.uint8), tf.constant(1, tf.uint8), tf.constant(code, tf.uint8)])
    own = tf.concat([mine, tf.pad(flags, [[0, 5]])[tf.newaxis]], 0)
    rank, size = rank_in_graph(members), size_in_graph(members)
    places = tf.pad(own[tf.newaxis], [[rank, size - rank - 1], [0, 0], [0, 0]])
    return ops.allreduce(places, op=Sum, name=name, process_set_id=members.process_set_id)


def _raise_if(wrong: Any) -> Any:
    """True, or an error on all ranks."""
    if tf.executing_eagerly():
        if wrong:
            raise CollectiveMismatchError(wrong)
        return tf.constant(True)
    fine = tf.equal(wrong, "")
    with tf.control_dependencies([tf.debugging.Assert(fine, [wrong])]):
        return tf.identity(fine)


def _assigned_after(settled: Any, variables: Sequence[Any]) -> Any:
    """`settled`, as an assignment to the variables: TensorFlow does not see those of a Python function, and would read
    an optimizer's state for the update before them."""
    inner = [tensorflow_variable(variable) for variable in variables]
    with tf.control_dependencies([settled]):
        assigned = [variable.assign(variable.read_value(), read_value=False) for variable in inner]
    with tf.control_dependencies(assigned):
        return tf.identity(settled)


def _fingerprints_of(named: Sequence[tuple[str, Any]]) -> Any:
    return fingerprints([tf.convert_to_tensor(variable) for _, variable in named])


def fingerprints(values: Sequence[Any]) -> Any:
    """uint8[n, 8]: FarmHash64 of each tensor's bytes."""
    with tf.device("CPU:0"):
        return tf.concat([tf.fingerprint(tf.reshape(value, [1, -1])) for value in values], 0)


def compare_fingerprints(everyone: np.ndarray[Any, Any]) -> Comparison:
    """Finds where the ranks' variables differ from those of the first rank that takes part.

    Args:
        everyone: uint8[size, n + 1, 8], as :func:`_everyone` gives it.
    """
    present = everyone[:, -1, _PRESENT] != 0
    first = int(np.argmax(present))
    different = (everyone[:, :-1] != everyone[first, :-1]).any(axis=2) & present[:, np.newaxis]
    return Comparison(different, first, REPLICA_CHECKS[everyone[first, -1, _ACTION]])


def _new_world() -> None:
    for guard in list(_guards):
        guard.new_world()


runtime.on_new_world(_new_world)
