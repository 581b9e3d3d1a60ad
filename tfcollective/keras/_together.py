"""The work that ``fit`` does on all ranks together, beside reducing gradients, without a callback of the user's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

from tfcollective import _runtime as runtime
from tfcollective._base.log import get_logger
from tfcollective._base.settings import variable
from tfcollective._runtime import ProcessSet
from tfcollective.keras._fit_checks import (
    advice,
    are_in_step,
    compare_rows,
    plan_of,
    undivided_rows,
    validate_together,
)
from tfcollective.keras._optimizers import distributed_states
from tfcollective.keras._parallel import mode
from tfcollective.keras._replica_state import average_statistics, differing_state, local_keys
from tfcollective.keras._row_sample import NO_SAMPLE, RowSample
from tfcollective.keras._synchronisation import BroadcastGlobalVariablesCallback
from tfcollective.tensorflow._objects import allgather_object

_LOG = get_logger(__name__)
_said: set[str] = set()
_SAMPLED = "_tfcollective_sampled"  # of a model: that its rows have been sampled


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
        sample: of the rows of the first epoch; None: they are not sampled.
    """

    def __init__(
        self,
        arguments: Mapping[str, Any],
        callbacks: list[Any],
        process_set: ProcessSet | None,
        elastic: bool,
        sample: RowSample | None,
    ) -> None:
        super().__init__()
        self.sample = sample
        self._arguments, self._callbacks = arguments, callbacks
        self._process_set = process_set
        self._elastic = elastic
        division = mode.active()
        self._divides = division is not None
        self._slices = division is not None and division.slices(arguments.get("x"))
        self._in_step = self._validates = False
        self._averages, self._checks = runtime.settings().average_statistics, runtime.settings().fit_checks
        self._first_epoch: int | None = None
        self._compares_rows = False

    def on_train_begin(self, logs: Any = None) -> None:
        """Compares, and says what is probably not meant."""
        if self._elastic:
            self._in_step = True  # all ranks pass the same arguments
        elif not self._alone():
            elements = None if self.sample is None else self.sample.elements
            mine = plan_of(self.model, self._arguments, self._callbacks, self.params, elements)
            plans = allgather_object(mine, name="start of fit", process_set=self._process_set)
            self._in_step = are_in_step(plans)
            self._validates = self._in_step and validate_together(plans)
            self._averages, self._checks = plans[0].averages, plans[0].checks
            if self._checks and len(plans) > 1:  # a rank that has yet to join the others is alone
                self._say(advice(plans, divides=self._divides, slices=self._slices))
                self._compares_rows = self._in_step and compare_rows(plans, slices=self._slices)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Notes the first one, of which rows are sampled."""
        if self._first_epoch is None:
            self._first_epoch = epoch
            if self._compares_rows and self.sample is not None:
                self.sample.begin(self.params.get("steps"))

    def on_test_begin(self, logs: Any = None) -> None:
        """A validation begins: with the statistics of all ranks."""
        if self._validates and not self._alone():
            self.average("this validation")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Makes statistics equal, and looks at what else is not."""
        if not self._in_step or self._alone():
            return
        if self._compares_rows:
            self._compares_rows = False
            self._compare_rows()
        if not self._elastic:  # else they are equal since the steps of the epoch were committed
            self.average(f"epoch {epoch}")
        if self._checks and self._is_time_to_compare(epoch):
            self._compare(f"epoch {epoch}")

    def _is_time_to_compare(self, epoch: int) -> bool:
        """True at the end of the first epoch and of training. Ranks that join an elastic job count epochs as the others
        do, but not which was the first.
        """
        first = not self._elastic and epoch == self._first_epoch
        return first or (self._elastic and epoch == 0) or epoch + 1 == self.params.get("epochs")

    def average(self, label: str) -> None:
        """Makes statistics equal; `label` says when."""
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

    def _compare_rows(self) -> None:
        """Says if ranks have trained on the same rows."""
        mine = NO_SAMPLE if self.sample is None else self.sample.end()
        samples = runtime.get_communicator(self._process_set).allgather(mine[np.newaxis], name="samples of rows")
        members = runtime.members(self._process_set)
        line = undivided_rows(list(samples), members.ranks, slices=self._slices) if members.rank == 0 else None
        self._say([] if line is None else [line], "rows")

    def _alone(self) -> bool:
        return runtime.members(self._process_set, outside=True).size == 1

    def _say(self, lines: list[str], topic: str = "") -> None:
        """Logs on one rank, and once a process: each line, or one of each topic."""
        for line in lines:
            if runtime.members(self._process_set, outside=True).rank == 0 and (topic or line) not in _said:
                _LOG.warning("%s", line)
            _said.add(topic or line)


class TogetherCompiledCallback(TogetherCallback):
    """The callback for training steps that XLA compiles: it compares the replicas outside of them."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Compares the replicas if it is time."""
        for state in distributed_states(self.model).values():
            state.guard.after_compiled_step()


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
    sample = None if elastic else _sample_of(model)
    kind = TogetherCompiledCallback if getattr(model, "jit_compile", False) else TogetherCallback
    return kind(arguments, callbacks, process_set, elastic, sample)


def _sample_of(model: Any) -> RowSample | None:
    """The sample for the first ``fit`` of a model; None for others, so that a loop of them costs nothing."""
    if not runtime.settings().fit_checks or not tf.executing_eagerly() or getattr(model, _SAMPLED, False):
        return None
    object.__setattr__(model, _SAMPLED, True)
    return RowSample()


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
