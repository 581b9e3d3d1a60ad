"""Metrics of all ranks' data: sums of what the ranks' metrics have counted.

A metric keeps numbers in variables and makes its result of them. Where they are sums over samples (the confusion matrix
of an AUC, the total and the count of a mean), the sums of all ranks' variables give the result that one process has for
all of the data. An average of the ranks' results is something else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfcollective import _runtime as runtime
from tfcollective._runtime import ProcessSet
from tfcollective._runtime.communicator import Sum
from tfcollective.tensorflow._names import without_numbers

_VALIDATION = "val_"
# Keras's classes whose update_state() adds to their variables, and does nothing else with them. A subclass with an
# update_state() of its own is not one of them.
ADDITIVE = frozenset(
    {
        "AUC",
        "BinaryIoU",
        "FBetaScore",
        "IoU",
        "Mean",
        "MeanIoU",
        "MeanMetricWrapper",
        "MeanRelativeError",
        "OneHotIoU",
        "OneHotMeanIoU",
        "Precision",
        "R2Score",
        "Recall",
        "Reduce",
        "RootMeanSquaredError",
        "SensitivitySpecificityBase",
        "Sum",
        "_ConfusionMatrixConditionCount",
        "_IoUBase",
    }
)


def is_additive(metric: Any) -> bool:
    """True if the variables of a metric are known to be sums over samples."""
    owner = next((kind for kind in type(metric).__mro__ if "update_state" in vars(kind)), object)
    return owner.__module__.partition(".")[0] in ("keras", "tf_keras") and owner.__name__ in ADDITIVE


class CountedMetrics:
    """The counts of a model's metrics so far, by the names under which they are logged.

    Attributes:
        rows: the number of samples that the loss is a mean of; 1 where it is not known.
    """

    def __init__(self, model: Any) -> None:
        self._metrics = dict(_named(model))
        additive = {name: metric for name, metric in self._metrics.items() if is_additive(metric)}
        self._results = {name: _as_number(metric.result()) for name, metric in additive.items()}
        self._values = {name: [_array(variable) for variable in metric.variables] for name, metric in additive.items()}
        self.rows = _rows(self._metrics.get("loss"))

    def can_add(self, name: str, logged: Any) -> bool:
        """True if the logged value is the result of a metric whose variables can be added up. It is not where another
        callback has evaluated the model in between, or has changed the log."""
        if name not in self._values:
            return False
        mine, logged = self._results[name], np.asarray(logged, np.float64)
        return mine.shape == logged.shape and bool(np.allclose(mine, logged, rtol=1e-4, equal_nan=True))

    def class_of(self, name: str) -> str | None:
        """The class of the metric of this name; None if there is none."""
        return type(self._metrics[name]).__name__ if name in self._metrics else None

    def counted(self, name: str) -> Any:
        """[n] float64: all variables of a metric, one after the other."""
        return np.concatenate([np.ravel(value) for value in self._values[name]]).astype(np.float64)

    def result_of(self, name: str, sums: Any) -> Any:
        """Returns the result that a metric has with these values of its variables; they keep their own values.

        Args:
            name: of the metric.
            sums: as :meth:`counted`.
        """
        metric, shapes = self._metrics[name], [value.shape for value in self._values[name]]
        now = [_array(variable) for variable in metric.variables]
        try:
            _assign(metric.variables, _split(sums, shapes))
            return _as_number(metric.result())
        finally:
            _assign(metric.variables, now)


class LogOfAllRanks:
    """The log of an epoch, or of ``evaluate``.

    Args:
        logs: of this rank, by name.
        trained: what the metrics had counted in training, where a validation came after it; else None.
        now: what they have counted now; None: there is no model.
        process_set: whose ranks' logs these are; all if None.
    """

    def __init__(
        self,
        logs: Any,
        trained: CountedMetrics | None,
        now: CountedMetrics | None,
        process_set: ProcessSet | None = None,
    ) -> None:
        self._logs = logs
        self._process_set = process_set
        self._trained, self._now = trained or now, now
        self._validated = trained is not None
        names = sorted((name for name, value in logs.items() if _is_number(value)), key=_place)
        self._scalars = [name for name in names if np.ndim(logs[name]) == 0]
        self._names = [name for name in names if np.ndim(logs[name]) == 0 or self._can_add(name)]

    def replace(self, label: str) -> list[str]:
        """Replaces what can be replaced, on all ranks; returns the names, with classes, of the means of values that
        differed."""
        names = ", ".join(map(without_numbers, self._names))
        sums, means, differ = self._sums_and_means(f"metrics of {label}: {names}")
        exact = [name for name in self._names if sums[name]]
        if exact:
            self._logs.update(self._results_of_sums(exact, f"counts of {label}: {names}"))
        rest = [name for name in self._scalars if not sums[name]]
        self._logs.update({name: means[name] for name in rest if differ[name]})
        return [self._with_class(name) for name in rest if differ[name]]

    def _results_of_sums(self, names: Sequence[str], label: str) -> dict[str, Any]:
        places = [self._counted(name) for name in names]
        counts = [counted.counted(own_name) for counted, own_name in places if counted is not None]
        sums = runtime.get_communicator(self._process_set).allreduce(np.concatenate(counts), op=Sum, name=label)
        split = np.split(sums, np.cumsum([one.size for one in counts])[:-1])
        results = [
            counted.result_of(own_name, values)
            for (counted, own_name), values in zip(places, split, strict=True)
            if counted is not None
        ]
        return {name: float(one) if one.ndim == 0 else one for name, one in zip(names, results, strict=True)}

    def _sums_and_means(self, label: str) -> tuple[dict[str, bool], dict[str, float], dict[str, bool]]:
        """Returns by name: whether all ranks can add it up, its mean, and whether the ranks' values differ."""
        flags = np.array([self._can_add(name) for name in self._names], np.float64)
        values = np.array([self._logs[name] if name in self._scalars else 0.0 for name in self._names], np.float64)
        rows = np.array([self._rows(name) for name in self._names])
        mine = np.concatenate([[1.0], flags, rows, rows * values, values, values**2])
        everyones = runtime.get_communicator(self._process_set).allreduce(mine, op=Sum, name=label)
        ranks, (flags, rows, weighted, plain, squares) = everyones[0], np.split(everyones[1:], 5)
        with np.errstate(invalid="ignore", divide="ignore"):
            means = np.where(rows > 0, weighted / rows, plain / ranks)
            differ = ~(ranks * squares - plain**2 <= 1e-12 * ranks * squares)
        by_name = [dict(zip(self._names, one.tolist(), strict=True)) for one in (flags == ranks, means, differ)]
        return by_name[0], by_name[1], by_name[2]

    def _counted(self, name: str) -> tuple[CountedMetrics | None, str]:
        """The metrics that a value comes from, and its name among them."""
        if self._validated and name.startswith(_VALIDATION):
            return self._now, name.removeprefix(_VALIDATION)
        return self._trained, name

    def _can_add(self, name: str) -> bool:
        counted, own_name = self._counted(name)
        return counted is not None and name in self._logs and counted.can_add(own_name, self._logs[name])

    def _rows(self, name: str) -> float:
        counted, own_name = self._counted(name)
        loss = f"{name.removesuffix(own_name)}loss"
        return counted.rows if counted is not None and self._can_add(loss) else 1.0

    def _with_class(self, name: str) -> str:
        counted, own_name = self._counted(name)
        kind = None if counted is None else counted.class_of(own_name)
        return f"{name} ({kind})" if kind else name


def _is_number(value: Any) -> bool:
    return np.asarray(value).dtype.kind in "biuf"


def _place(name: str) -> tuple[str, list[int]]:
    """Returns a metric's place in the order that all ranks have: they may number metrics of one kind differently, but
    each does so in the order in which they were made.
    """
    return without_numbers(name), [int(number) for number in re.findall(r"\d+", name)]


def _named(model: Any) -> Iterator[tuple[str, Any]]:
    """(name in the log, metric); Keras 3 has those of ``compile`` in one metric, whose result is a dictionary."""
    for metric in model.metrics:
        if not metric.variables:  # not built: its value is not logged
            continue
        if type(metric).__name__ != "CompileMetrics":
            yield metric.name, metric
            continue
        names, parts = list(metric.result()), metric.metrics
        if len(names) == len(parts):
            yield from zip(names, parts, strict=True)


def _rows(loss: Any) -> float:
    """Keras counts each batch's loss by the samples of the batch."""
    count = getattr(loss, "count", None)
    return float(_array(count)) if count is not None and is_additive(loss) else 1.0


def _split(values: Any, shapes: Sequence[tuple[int, ...]]) -> list[Any]:
    sizes = [int(np.prod(shape)) for shape in shapes]
    parts = np.split(values, np.cumsum(sizes)[:-1])
    return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]


def _assign(variables: Sequence[Any], values: Sequence[Any]) -> None:
    for variable, value in zip(variables, values, strict=True):
        kind = _array(variable).dtype
        variable.assign((np.rint(value) if kind.kind in "iu" else value).astype(kind))


def _array(variable: Any) -> Any:
    return tf.convert_to_tensor(variable).numpy()


def _as_number(result: Any) -> Any:
    return np.asarray(tf.convert_to_tensor(result), np.float64)
