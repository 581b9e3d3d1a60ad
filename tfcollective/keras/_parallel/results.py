"""Metrics of what all ranks have counted: their states are merged once, where Keras takes the results of a run.

Metrics that count sums are added up, exactly where they are whole numbers. A class that has ``merge_state``, as those
of Keras 2, merges by itself. Any other is refused by name: a mean of ranks' results would be another number.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from tfcollective._base.errors import UnsupportedError
from tfcollective.keras._metric_sums import is_additive
from tfcollective.tensorflow._objects import allgather_object, broadcast_object
from tfcollective.tensorflow._reductions import unnoted


def leaves_of(metrics: Sequence[Any]) -> list[Any]:
    """The metrics that have states of their own; Keras 3 has those of ``compile`` in one."""
    leaves = []
    for metric in metrics:
        parts = metric.metrics if type(metric).__name__ == "CompileMetrics" else None
        leaves += [metric] if parts is None else leaves_of(parts)
    return leaves


def check_metrics(metrics: Sequence[Any]) -> None:
    """Raises UnsupportedError for a metric whose states cannot be merged; names it."""
    for metric in metrics:
        if _adds(metric):
            continue
        if hasattr(metric, "merge_state"):
            _again(metric)
        else:
            raise UnsupportedError(
                f"metric {metric.name}: {type(metric).__name__} has an update_state of its own, and tfcollective "
                "cannot know how the states of several ranks become one: give it merge_state(self, metrics), which "
                "takes in the states of other metrics of its class, as for counts: for one in metrics: "
                "self.count.assign_add(one.count)"
            )


@dataclass(frozen=True)
class _Counted:
    """The counts of a rank in a run.

    Attributes:
        states: of each metric, of its variables; None if the rank has made no step.
        others: what its last step has returned beside results of metrics.
        weight: of `others`.
    """

    states: list[list[Any]] | None
    others: dict[str, Any]
    weight: float


def result_of_all(model: Any, logs: Any, weight: float, label: str, *, last_counts: bool) -> dict[str, Any]:
    """The result of a run on all ranks, which all call it; then the metrics have counted what all ranks have.

    Args:
        model: with the same metrics on all ranks.
        logs: of this rank's last step; empty where it has made none.
        weight: of this rank's numbers that are no metric's.
        label: says of what, in messages.
        last_counts: such a number is that of the rank with the largest weight, not the weighted mean.

    Returns:
        Empty if no rank has made a step.
    """
    logs = _flat(logs)
    leaves = [one for one in leaves_of(model.metrics) if one.variables] if logs else []
    check_metrics(leaves)
    names = set(model.get_metrics_result()) if logs else set()
    others = {name: np.asarray(value, np.float64) for name, value in logs.items() if name not in names}
    states = [[tf.convert_to_tensor(variable).numpy() for variable in one.variables] for one in leaves]
    mine = _Counted(states if logs else None, others, weight)
    with unnoted():
        everyones = allgather_object(mine, name=f"metrics of {label}")
        having = [rank for rank, theirs in enumerate(everyones) if theirs.states is not None]
        counted = [everyones[rank] for rank in having]
        result: dict[str, Any] = {}
        if logs:
            for place, metric in enumerate(leaves):
                merge(metric, [theirs.states[place] for theirs in counted if theirs.states is not None])
            result = {name: _as_number(value) for name, value in model.get_metrics_result().items() if name in logs}
            result |= {name: _combined(name, counted, last_counts) for name in others}
            result = {name: result[name] for name in logs}
        if having and len(having) < len(everyones):
            result = broadcast_object(result, root_rank=having[0], name=f"result of {label}")
    return result


def values_in_order(model: Any, logs: dict[str, Any]) -> Any:
    """What ``evaluate`` and ``train_on_batch`` return where they do not return the dictionary."""
    if hasattr(model, "_flatten_metrics_in_order"):  # Keras 3
        return model._flatten_metrics_in_order(logs)
    values = [logs[name] for name in model.metrics_names if name in logs]
    return values[0] if len(values) == 1 else values


def _flat(logs: dict[str, Any]) -> dict[str, Any]:
    """As Keras 3 has the logs: a step of the user's own may return a dictionary for all metrics of ``compile``."""
    flat: dict[str, Any] = {}
    for name, value in logs.items():
        flat |= _flat(value) if isinstance(value, dict) else {name: value}
    return flat


def _combined(name: str, counted: Sequence[_Counted], last_counts: bool) -> Any:
    if last_counts:
        return _as_number(max(counted, key=lambda theirs: theirs.weight).others[name])
    weights = [theirs.weight for theirs in counted]
    present = [(weight, theirs.others[name]) for weight, theirs in zip(weights, counted, strict=True) if weight > 0]
    return _as_number(sum(weight * value for weight, value in present) / sum(weights))


def _as_number(value: Any) -> Any:
    value = np.asarray(value)
    return value.item() if value.ndim == 0 else value


def _adds(metric: Any) -> bool:
    """True if the states of several ranks become one when they are added up; Keras 2 says so of any metric whose class
    does not merge in another way."""
    kinds = tf.keras.metrics.Metric, type(metric)
    merges = [getattr(kind, "merge_state", None) for kind in kinds]
    return is_additive(metric) or (merges[0] is not None and merges[0] is merges[1])


def merge(metric: Any, states: Sequence[Sequence[Any]]) -> None:
    """Gives `metric` the states of all ranks, which are lists of the values of its variables, as one."""
    if _adds(metric):
        for place, variable in enumerate(metric.variables):
            values = [state[place] for state in states]
            wide = np.float64 if values[0].dtype.kind == "f" else values[0].dtype
            variable.assign(np.sum(values, axis=0, dtype=wide).astype(values[0].dtype))
        return
    others = [_again(metric) for _ in states]
    for other, state in zip(others, states, strict=True):
        for variable, value in zip(other.variables, state, strict=True):
            variable.assign(value)
    metric.reset_state()
    metric.merge_state(others)


def _again(metric: Any) -> Any:
    """A metric of the same class and arguments, with states of its own.

    Raises:
        UnsupportedError: ``__init__`` needs what ``get_config`` does not return.
    """
    kind, config = type(metric), metric.get_config()
    try:
        return kind.from_config(config)
    except TypeError:  # most often, the class has no argument for what Keras's get_config adds
        accepted = inspect.signature(kind).parameters
    try:
        return kind(**{name: value for name, value in config.items() if name in accepted})
    except TypeError as error:
        raise UnsupportedError(
            f"metric {metric.name}: its states are merged in other metrics of its class, and {kind.__name__} cannot be "
            f"made again from its get_config ({error}): return from it all that __init__ needs"
        ) from error
