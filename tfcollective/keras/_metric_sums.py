"""Metrics of all ranks' data: what the ranks' metrics have counted, merged.

A metric keeps numbers in variables and makes its result of them. Where they are sums over samples (the confusion matrix
of an AUC, the total and the count of a mean), the sums of all ranks' variables give the result that one process has for
all of the data. A metric of another kind may have a ``merge_state`` of its own. An average of the ranks' results is
something else.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfcollective import _runtime as runtime
from tfcollective._base.errors import UnsupportedError
from tfcollective._runtime import ProcessSet
from tfcollective._runtime.communicator import Sum
from tfcollective.keras._mixin import is_of_keras
from tfcollective.tensorflow._names import without_numbers

_ASSIGNS = ("assign", "assign_add", "assign_sub")
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


def assigns_in_result(metric: Any) -> bool:
    """True if a class of the user's own assigns variables in ``result``, which depend on when that is called."""
    codes = [vars(kind)["result"] for kind in type(metric).__mro__ if not is_of_keras(kind) and "result" in vars(kind)]
    return any(name in _ASSIGNS for one in codes for name in _names(getattr(inspect.unwrap(one), "__code__", None)))


def _names(code: Any) -> Iterator[str]:
    """The names of all attributes that a function's code has, and that of functions within."""
    yield from getattr(code, "co_names", ())
    for constant in getattr(code, "co_consts", ()):
        yield from _names(constant) if hasattr(constant, "co_names") else ()


def merges(metric: Any) -> bool:
    """True if the states of several ranks become one: sums, and those of a class with a ``merge_state`` of its own.

    That of Keras 2 for all metrics adds up what need not be sums.
    """
    general, own = (getattr(kind, "merge_state", None) for kind in (tf.keras.metrics.Metric, type(metric)))
    return is_additive(metric) or own is not general


def merge(metric: Any, states: Sequence[Sequence[Any]]) -> None:
    """Gives `metric` the states of all ranks, which are lists of the values of its variables, as one."""
    if is_additive(metric):
        sums = [np.sum(values, axis=0, dtype=_wide(values[0])) for values in zip(*states, strict=True)]
        _assign(metric.variables, sums)
        return
    others = [made_again(metric) for _ in states]
    for other, state in zip(others, states, strict=True):
        _assign(other.variables, state)
    metric.reset_state()
    metric.merge_state(others)


def made_again(metric: Any) -> Any:
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


def _wide(value: Any) -> Any:
    """The type in which such values are added up."""
    return np.float64 if value.dtype.kind == "f" else value.dtype


def _merges_here(metric: Any) -> bool:
    """True if it is merged in a log, where a mean stands for the results of those that are not."""
    try:
        if not is_additive(metric) and merges(metric):
            made_again(metric)
    except UnsupportedError:
        return False
    return merges(metric)


class CountedMetrics:
    """The counts of a model's metrics so far, by the names under which they are logged.

    Attributes:
        rows: the number of samples that the loss is a mean of; 1 where it is not known.
    """

    def __init__(self, model: Any) -> None:
        self._metrics = dict(_named(model))
        merging = {name: metric for name, metric in self._metrics.items() if _merges_here(metric)}
        self._results = {name: _as_number(metric.result()) for name, metric in merging.items()}
        self._values = {name: [_array(variable) for variable in metric.variables] for name, metric in merging.items()}
        self.rows = _rows(self._metrics.get("loss"))

    def can_merge(self, name: str, logged: Any) -> bool:
        """True if the logged value is the result of a metric whose states can be merged. It is not where another
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

    def adds(self, name: str) -> bool:
        """True if the states of a metric are merged by adding them up."""
        return is_additive(self._metrics[name])

    def result_of(self, name: str, states: Any) -> Any:
        """Returns the result that a metric has with the states of all ranks, or their sum; it keeps its own.

        Args:
            name: of the metric.
            states: [number of states, n], each as :meth:`counted`.
        """
        metric, shapes = self._metrics[name], [value.shape for value in self._values[name]]
        now = [_array(variable) for variable in metric.variables]
        try:
            merge(metric, [_split(state, shapes) for state in states])
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
        self._names = [name for name in names if np.ndim(logs[name]) == 0 or self._can_merge(name)]

    def replace(self, label: str) -> list[str]:
        """Replaces what can be replaced, on all ranks; returns the names, with classes, of the means of values that
        differed."""
        names = ", ".join(map(without_numbers, self._names))
        exact, means, differ = self._sums_and_means(f"metrics of {label}: {names}")
        for adds, what in ((True, "counts"), (False, "states")):
            self._logs.update(self._results(exact, f"{what} of {label}: {names}", adds=adds))
        rest = [name for name in self._scalars if not exact[name]]
        self._logs.update({name: means[name] for name in rest if differ[name]})
        return [self._with_class(name) for name in rest if differ[name]]

    def _results(self, exact: Mapping[str, bool], label: str, *, adds: bool) -> dict[str, Any]:
        """The results of the metrics that are merged by adding up, or of the others."""
        found = {name: self._counted(name) for name in self._names if exact[name]}
        places = [
            (name, counted, own_name)
            for name, (counted, own_name) in found.items()
            if counted is not None and counted.adds(own_name) == adds
        ]
        if not places:
            return {}
        mine = [counted.counted(own_name) for _, counted, own_name in places]
        everything = np.concatenate(mine)[np.newaxis]
        communicator = runtime.get_communicator(self._process_set)
        if adds:
            states = communicator.allreduce(everything, op=Sum, name=label)
        else:
            states = communicator.allgather(everything, name=label)
        split = np.split(states, np.cumsum([one.size for one in mine])[:-1], axis=1)
        results = [counted.result_of(own_name, one) for (_, counted, own_name), one in zip(places, split, strict=True)]
        pairs = zip(places, results, strict=True)
        return {name: float(one) if one.ndim == 0 else one for (name, _, _), one in pairs}

    def _sums_and_means(self, label: str) -> tuple[dict[str, bool], dict[str, float], dict[str, bool]]:
        """Returns by name: whether all ranks can merge it, its mean, and whether the ranks' values differ."""
        flags = np.array([self._can_merge(name) for name in self._names], np.float64)
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

    def _can_merge(self, name: str) -> bool:
        counted, own_name = self._counted(name)
        return counted is not None and name in self._logs and counted.can_merge(own_name, self._logs[name])

    def _rows(self, name: str) -> float:
        counted, own_name = self._counted(name)
        loss = f"{name.removesuffix(own_name)}loss"
        return counted.rows if counted is not None and self._can_merge(loss) else 1.0

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
