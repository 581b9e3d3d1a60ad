"""Metrics of what all ranks have counted: their states are merged once, where Keras takes the results of a run.

Metrics that count sums are added up, exactly where they are whole numbers. A class that has a ``merge_state`` of its
own merges by itself. Any other is updated with the rows of all ranks, see ``tfcollective.keras._parallel.updates``, or
refused by name: a mean of ranks' results would be another number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from tfcollective import _runtime as runtime
from tfcollective._base.errors import UnsupportedError
from tfcollective.keras._metric_sums import assigns_in_result, is_additive, made_again, merge, merges
from tfcollective.keras._parallel.interrupted import Attempt, Counted, Part
from tfcollective.keras._parallel.updates import recording_of, refusal, see_updates, update_again
from tfcollective.tensorflow._objects import allgather_object, broadcast_object
from tfcollective.tensorflow._reductions import unnoted


def leaves_of(metrics: Sequence[Any]) -> list[Any]:
    """The metrics that have states of their own; Keras 3 has those of ``compile`` in one."""
    leaves = []
    for metric in metrics:
        parts = metric.metrics if type(metric).__name__ == "CompileMetrics" else None
        leaves += [metric] if parts is None else leaves_of(parts)
    return leaves


def prepare_metrics(metrics: Sequence[Any]) -> bool:
    """Prepares metrics for a run; True if some of them are updated with the rows of all ranks.

    Raises:
        UnsupportedError: a metric's states cannot be merged; names it.
    """
    for metric in metrics:
        if assigns_in_result(metric):
            raise UnsupportedError(
                f"metric {metric.name}: {type(metric).__name__}.result assigns variables, and each rank would assign "
                "results of its own rows: assign them in an update_state of its own"
            )
    apart = [one for one in metrics if not is_additive(one)]
    for metric in apart:
        if merges(metric):
            made_again(metric)
        else:
            see_updates(metric)
    return not all(map(merges, apart))


@dataclass(frozen=True)
class _OfRank:
    """What a rank brings along.

    Attributes:
        counted: what it has counted, in the parts of the run; empty if it has made no step.
        updates: some metrics are updated with the rows of all ranks.
        refused: the error about one that cannot be; empty if all can.
    """

    counted: list[Counted]
    updates: bool
    refused: str


def result_of_all(
    model: Any,
    logs: Any,
    weight: float,
    label: str,
    turns: tuple[int, int] | None = None,
    attempt: Attempt | None = None,
    places: Sequence[int] = (),
) -> dict[str, Any]:
    """The result of a run on all ranks, which all call it; then the metrics have counted what all ranks have.

    Args:
        model: with the same metrics on all ranks.
        logs: of this rank's last step; empty where it has made none.
        weight: of this rank's numbers that are no metric's.
        label: says of what, in messages.
        turns: of an evaluation: the number of batches that ranks took at once, and the rank that took the first.
            Numbers that are no metric's are then those of the rank with the largest weight, else their weighted mean.
        attempt: keeps what is counted in an evaluation, and has what was counted before.
        places: of the batches that this rank has evaluated, for `attempt`.

    Returns:
        Empty if no rank has made a step.
    """
    logs = _flat(logs)
    before = Part() if attempt is None else attempt.before
    shown = list(logs) or before.names
    leaves = [one for one in leaves_of(model.metrics) if one.variables] if shown else []
    apart = [one for one in leaves if not merges(one)]
    record = recording_of(model) if turns else None
    names = set(model.get_metrics_result()) if shown else set()
    others = {name: np.asarray(value, np.float64) for name, value in logs.items() if name not in names}
    states = [[] if one in apart else _values(one) for one in leaves]
    refused = refusal(apart, record, evaluates=turns is not None)
    counted = [*before.counted, Counted(states, others, weight)] if logs else before.counted
    if attempt is not None and not apart:
        attempt.keep(Part(counted, [*before.places, *places], shown))
    mine = _OfRank(counted, bool(apart), refused)
    with unnoted():
        everyones = allgather_object(mine, name=f"metrics of {label}")
        for theirs in everyones:
            if theirs.refused:
                raise UnsupportedError(theirs.refused)
        if turns and any(theirs.updates for theirs in everyones):
            update_again(apart, record, *turns)
        having = [rank for rank, theirs in enumerate(everyones) if theirs.counted]
        counted = [part for theirs in everyones for part in theirs.counted]
        result: dict[str, Any] = {}
        if shown:
            for place, metric in enumerate(leaves):
                if metric not in apart:
                    merge(metric, [part.states[place] for part in counted])
            result = {name: _as_number(value) for name, value in model.get_metrics_result().items() if name in shown}
            more = [name for name in shown if name not in names]
            result |= {name: _combined(name, counted, last_counts=turns is not None) for name in more}
            result = {name: result[name] for name in shown}
        if having and len(having) < len(everyones):
            result = broadcast_object(result, root_rank=having[0], name=f"result of {label}")
    return result


def count_on(model: Any) -> None:
    """Before a run that counts on from merged states, as ``train_on_batch`` does in Keras before 3.13: rank 0 keeps
    them.
    """
    for metric in leaves_of(model.metrics) if runtime.rank() != 0 else ():
        if merges(metric):
            metric.reset_state()


def _values(metric: Any) -> list[Any]:
    return [tf.convert_to_tensor(variable).numpy() for variable in metric.variables]


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


def _combined(name: str, counted: Sequence[Counted], last_counts: bool) -> Any:
    if last_counts:
        return _as_number(max(counted, key=lambda theirs: theirs.weight).others[name])
    weights = [theirs.weight for theirs in counted]
    present = [(weight, theirs.others[name]) for weight, theirs in zip(weights, counted, strict=True) if weight > 0]
    return _as_number(sum(weight * value for weight, value in present) / sum(weights))


def _as_number(value: Any) -> Any:
    value = np.asarray(value)
    return value.item() if value.ndim == 0 else value
