"""Callbacks that make ranks equal: weights at the start, metrics at the end of an epoch."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import tensorflow as tf

from tfcollective import _runtime as runtime
from tfcollective._base.errors import UnsupportedError
from tfcollective._base.log import get_logger
from tfcollective._runtime import ProcessSet
from tfcollective.keras._accumulation import accumulators
from tfcollective.keras._metric_sums import CountedMetrics, LogOfAllRanks
from tfcollective.keras._optimizers import distributed_states, optimizers_of
from tfcollective.keras._parallel import mode
from tfcollective.keras._progress import FitProgress
from tfcollective.keras._replica_state import metric_variables, moving_statistics
from tfcollective.keras._variables import assigned_weights, build_optimizer, distinct, optimizer_variables
from tfcollective.tensorflow._gradients import LocalVariables, variable_key
from tfcollective.tensorflow._guard import ReplicaGuards
from tfcollective.tensorflow._objects import allgather_object
from tfcollective.tensorflow._variables import broadcast_variables

_LOG = get_logger(__name__)


class BroadcastGlobalVariablesCallback(tf.keras.callbacks.Callback):  # type: ignore[misc]  # Keras is not typed
    """Gives all ranks the weights and the optimizer state of one, so that they start equal.

    It happens before the first step if the model is built (the optimizer is built for it), and after the first step:
    then models are built, optimizers that the model holds in addition to that of ``compile`` are, too, and layers have
    set weights that depend on their first batch. An optimizer's state is broadcast once.

    Args:
        root_rank: whose weights and state; a rank of the world, also with a process set.
        local_variables: variables that stay each rank's own.
        process_set: whose ranks start equal; all if None. Other ranks keep their own weights.
    """

    def __init__(
        self,
        root_rank: int = 0,
        *,
        local_variables: Iterable[Any] | None = None,
        process_set: ProcessSet | None = None,
    ) -> None:
        super().__init__()
        self._root_rank = root_rank
        self._process_set = process_set
        self._local = LocalVariables()
        for variable in local_variables or ():
            self._local.add(variable)
        self._is_first = True
        self._holds = False  # whether ranks may differ until after the first step
        self._progress = FitProgress()

    def register_local_var(self, var: Any) -> None:
        """Leaves `var` to each rank."""
        self._local.add(var)

    def local_keys(self) -> frozenset[int]:
        """Returns the keys of the variables that stay each rank's own."""
        return self._local.keys()

    def on_train_begin(self, logs: Any = None) -> None:
        """Broadcasts if the variables exist.

        Raises:
            UnsupportedError: ``fit`` runs in a v1 graph.
        """
        if not tf.compat.v1.executing_eagerly_outside_functions():
            raise UnsupportedError(
                "BroadcastGlobalVariablesCallback: fit runs in a v1 graph (tf.compat.v1.disable_eager_execution), and "
                "weights are neither broadcast nor compared there: leave eager execution on, or use a session with "
                "BroadcastGlobalVariablesHook"
            )
        self._is_first = self._holds = True
        if self.model.built and self.model.weights:
            build_optimizer(self.model)
            self._broadcast(optimizer_variables(getattr(self.model, "optimizer", None)))
            self._holds = self._has_more_optimizers()
        if self._holds:
            for guard in self._guards():
                guard.hold()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Broadcasts after the first step."""
        if self._is_first:
            self._is_first = False
            # An optimizer's state that was equal before the step is so after it, and may have each rank's own parts.
            # Moving statistics are each rank's own until they are averaged, and what metrics have counted is, too.
            own = {variable_key(one) for one in (*moving_statistics(self.model), *metric_variables(self.model))}
            self._broadcast(self._variables_of_all_optimizers() if self._holds else (), own)
            if self._holds:
                for guard in self._guards():
                    guard.restart()
        self._progress.step(self, logs)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Notes the epoch, for ``tfcollective status``."""
        self._progress.begin_epoch(epoch)

    def on_train_end(self, logs: Any = None) -> None:
        """Publishes the last step, for ``tfcollective status``."""
        self._progress.step(self, logs, last=True)

    def _broadcast(self, more: Sequence[Any], own: Collection[int] = ()) -> None:
        if not runtime.members(self._process_set, outside=True).included:
            return
        # A table of words is a weight in Keras 2; it cannot be assigned.
        variables = [one for one in distinct([*self.model.weights, *more]) if hasattr(one, "assign")]
        local = self._local.keys().union(own)
        with assigned_weights([self.model]):
            shared = [v for v in variables if variable_key(v) not in local]
            broadcast_variables(shared, root_rank=self._root_rank, process_set=self._process_set)

    def _has_more_optimizers(self) -> bool:
        """True if there are some that a training step of its own builds: which ones are built already may differ from
        rank to rank, for example where rank 0 has restored a checkpoint."""
        return any(place != "optimizer" for place in optimizers_of(self.model))

    def _variables_of_all_optimizers(self) -> list[Any]:
        """Returns the variables of the optimizers that are built on all ranks; the others begin with equal values
        anyway.

        Without the gradients that a step has accumulated, which are each rank's own.
        """
        own = {place: optimizer_variables(optimizer) for place, optimizer in optimizers_of(self.model).items()}
        counts = {place: len(variables) for place, variables in own.items()}
        several = self._has_more_optimizers() and runtime.members(self._process_set, outside=True).included
        name = "broadcast/optimizers"
        everyones = allgather_object(counts, name=name, process_set=self._process_set) if several else [counts]
        alike = [place for place in own if all(theirs.get(place) == counts[place] for theirs in everyones)]
        found = distinct([variable for place in alike for variable in own[place]])
        passes = {variable_key(variable) for variable in accumulators(self.model)}  # of the step that was just done
        return [variable for variable in found if variable_key(variable) not in passes]

    def _guards(self) -> list[ReplicaGuards]:
        return [state.guard for state in distributed_states(self.model).values()]


class MetricAverageCallback(tf.keras.callbacks.Callback):  # type: ignore[misc]  # Keras is not typed
    """Gives the log of an epoch the metrics of all ranks' data: put it before callbacks that use them.

    What Keras's metrics count is added up over the ranks, and metrics with a ``merge_state`` of their own are merged:
    the log has what one process has for all of the data. Other values in the log become the mean of the ranks' values,
    in which a rank counts by its samples; where they differ, rank 0 names them once.

    ``evaluate(..., callbacks=[MetricAverageCallback()])``, called on all ranks, each with its part of the data, returns
    the metrics of all of them. In ``fit`` all ranks validate, or none. All ranks must have the same metrics.

    Args:
        process_set: whose ranks' data are meant; all if None. On other ranks logs stay as they are.
    """

    def __init__(self, *, process_set: ProcessSet | None = None) -> None:
        super().__init__()
        self._process_set = process_set
        self._in_fit = False
        self._trained: CountedMetrics | None = None
        self._validated_together = False
        self._named: set[str] = set()

    def set_model(self, model: Any) -> None:
        """Starts a run of ``fit`` or ``evaluate``."""
        super().set_model(model)
        self._in_fit = False
        self._trained = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Validations are part of epochs from here on."""
        self._in_fit = True

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Resets the metrics."""
        self._trained = None

    def on_test_begin(self, logs: Any = None) -> None:
        """Keeps what the metrics have counted in training: the validation counts with the same ones."""
        self._validated_together = mode.active() is not None
        if self._in_fit and not self._is_alone():
            self._trained = CountedMetrics(self.model)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Replaces the metrics in `logs`."""
        self.replace(logs, f"epoch {epoch}")

    def replace(self, logs: Any, label: str) -> None:
        """Replaces the metrics in `logs`, which are those that the model has now; `label` says of what."""
        if not logs or self._is_alone() or mode.active() is not None:  # else they are of all ranks already
            return
        now = None if self.model is None else CountedMetrics(self.model)
        together = self._validated_together
        own = {name: value for name, value in logs.items() if not (together and name.startswith("val_"))}
        averages = LogOfAllRanks(own, self._trained, now, self._process_set)
        differing = averages.replace(label)
        logs.update(own)
        unknown = {text for text in differing if text not in self._named}
        self._named |= unknown
        if unknown and runtime.members(self._process_set).rank == 0:
            _LOG.warning(
                "MetricAverageCallback: %s: the mean of the ranks' values, weighted by samples. It need not be the "
                "value for all of the data: only Keras's own metrics, and those with a merge_state, can be merged",
                ", ".join(sorted(unknown)),
            )

    def _is_alone(self) -> bool:
        members = runtime.members(self._process_set, outside=True)
        return members.size == 1 or not members.included
