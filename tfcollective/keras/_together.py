"""The work that ``fit`` does on all ranks together, beside reducing gradients, without a callback of the user's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from tfcollective import _runtime as runtime
from tfcollective._base.log import get_logger
from tfcollective._base.settings import variable
from tfcollective._runtime import ProcessSet
from tfcollective.keras._fit_checks import advice, are_in_step, plan_of, validate_together
from tfcollective.keras._optimizers import distributed_states
from tfcollective.keras._parallel import mode
from tfcollective.keras._replica_state import average_statistics, differing_state, local_keys
from tfcollective.keras._synchronisation import BroadcastGlobalVariablesCallback
from tfcollective.tensorflow._objects import allgather_object

_LOG = get_logger(__name__)
_said: set[str] = set()


class TogetherCallback(tf.keras.callbacks.Callback):  # type: ignore[misc]  # Keras is not typed
    """Compares what ranks begin ``fit`` with, and keeps the weights equal that training moves without gradients.

    All of it are collectives, which all ranks call at the same places: at the start, then at the ends of epochs only if
    the ranks have said that they have the same epochs and batches, and before validations only if all of them validate.
    Where an epoch's number of batches is not known beforehand, ranks with different numbers end with an error in any
    case, as they would without this callback.

    Args:
        arguments: of ``fit``, by name.
        callbacks: the user's.
        process_set: whose ranks train together; all if None.
        elastic: ``fit`` divides the data itself, and ranks that join come into the middle of it.
    """

    def __init__(
        self, arguments: Mapping[str, Any], callbacks: list[Any], process_set: ProcessSet | None, elastic: bool
    ) -> None:
        super().__init__()
        self._arguments, self._callbacks = arguments, callbacks
        self._process_set = process_set
        self._elastic = elastic
        self._divided = mode.active() is not None  # ranks have equal data and seeds
        self._in_step = self._validates = False
        self._averages, self._checks = runtime.settings().average_statistics, runtime.settings().fit_checks
        self._first_epoch: int | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Compares, and says what is probably not meant."""
        if self._elastic:
            self._in_step = self._validates = True  # all ranks pass the same arguments
        elif not self._alone():
            mine = plan_of(self.model, self._arguments, self._callbacks, self.params)
            plans = allgather_object(mine, name="start of fit", process_set=self._process_set)
            self._in_step = are_in_step(plans)
            self._validates = self._in_step and validate_together(plans)
            self._averages, self._checks = plans[0].averages, plans[0].checks
            if self._checks and len(plans) > 1 and not self._divided:  # a rank that has yet to join the others is alone
                self._say(advice(plans))

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Notes the first one."""
        self._first_epoch = epoch if self._first_epoch is None else self._first_epoch

    def on_test_begin(self, logs: Any = None) -> None:
        """A validation begins: with the statistics of all ranks."""
        if self._validates and not self._alone():
            self._average("this validation")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Makes statistics equal, and looks at what else is not."""
        if not self._in_step or self._alone():
            return
        self._average(f"epoch {epoch}")
        if self._checks and self._is_time_to_compare(epoch):
            self._compare(f"epoch {epoch}")

    def _is_time_to_compare(self, epoch: int) -> bool:
        """True at the end of the first epoch and of training. Ranks that join an elastic job count epochs as the others
        do, but not which was the first.
        """
        first = not self._elastic and epoch == self._first_epoch
        return first or (self._elastic and epoch == 0) or epoch + 1 == self.params.get("epochs")

    def _average(self, label: str) -> None:
        if self._averages:
            average_statistics(self.model, self._process_set, self._local_keys(), label)

    def _local_keys(self) -> frozenset[int]:
        callbacks = [one for one in self._callbacks if isinstance(one, BroadcastGlobalVariablesCallback)]
        return local_keys(self.model).union(*(one.local_keys() for one in callbacks))

    def _compare(self, label: str) -> None:
        names = differing_state(self.model, self._process_set, self._local_keys(), label)
        if names:
            text = (
                f"fit: weights that training moves without gradients differ between the ranks: {', '.join(names)}. "
                "Each rank evaluates and saves its own: average them at the end of an epoch (allreduce), broadcast "
                f"them, or name them with register_local_var. {variable('fit_checks')}=0 leaves out the comparison"
            )
            self._say([text])

    def _alone(self) -> bool:
        return runtime.members(self._process_set, outside=True).size == 1

    def _say(self, lines: list[str]) -> None:
        """Logs on one rank, and each line once a process."""
        for line in lines:
            if runtime.members(self._process_set, outside=True).rank == 0 and line not in _said:
                _LOG.warning("%s", line)
            _said.add(line)


def together(model: Any, arguments: Mapping[str, Any], *, elastic: bool) -> TogetherCallback | None:
    """The callback for a ``fit`` that all ranks of a world, or of one process set, do together; else None.

    Args:
        model: that trains.
        arguments: of ``fit``, by name.
        elastic: with an ``Elastic`` among the callbacks.
    """
    if not runtime.is_initialized() or (runtime.size() == 1 and not runtime.settings().elastic):
        return None
    given = arguments.get("callbacks")
    listed = given.callbacks if isinstance(given, tf.keras.callbacks.CallbackList) else tf.nest.flatten(given)
    callbacks = [one for one in listed if one is not None]
    sets = [state.options.process_set for state in distributed_states(model).values()]
    if not sets and not any(isinstance(one, BroadcastGlobalVariablesCallback) for one in callbacks):
        return None
    process_set = sets[0] if sets else None
    if any(one is not process_set for one in sets) or not runtime.members(process_set, outside=True).included:
        return None
    return TogetherCallback(arguments, callbacks, process_set, elastic)


@contextmanager
def added_callback(model: Any, arguments: dict[str, Any], callback: TogetherCallback | None) -> Iterator[None]:
    """Adds `callback` to the callbacks in `arguments` while it is open: as the first, or last in a CallbackList."""
    given = arguments["callbacks"]
    if callback is None:
        yield
    elif not isinstance(given, tf.keras.callbacks.CallbackList):
        arguments["callbacks"] = [callback, *tf.nest.flatten(given)] if given else [callback]
        yield
    else:
        callback.set_model(model)
        callback.set_params(given.params)
        given.callbacks.append(callback)
        try:
            yield
        finally:
            given.callbacks.remove(callback)
