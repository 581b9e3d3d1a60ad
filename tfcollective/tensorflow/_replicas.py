"""Decides about replicas whose weights differ: what is tolerated is taken back, anything else is acted upon.

Ranks with other numbers of threads, or other kinds of processors, add up in another order. Where an optimizer sums over
whole tensors (clipping by norm, Lamb, Adafactor, Muon, constraints) equal gradients then make updates that differ in
the last bits. Such differences are measured and removed: all ranks take the first rank's weights.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from tfcollective import _runtime as runtime
from tfcollective._base.log import get_logger
from tfcollective._runtime import Members
from tfcollective._runtime.communicator import Sum
from tfcollective.tensorflow import _ops as ops
from tfcollective.tensorflow._finite import is_finite
from tfcollective.tensorflow._replica_check import ReplicaCheck
from tfcollective.tensorflow._variables import tensorflow_variable

_CHUNK = 1 << 20  # elements
_LOG = get_logger(__name__)

ADVICE = (
    "tfcollective: the replicas' weights differ. Broadcast the initial weights from one rank "
    "(BroadcastGlobalVariablesCallback or broadcast_variables), apply gradients only through DistributedOptimizer or "
    "DistributedGradientTape, put MetricAverageCallback before callbacks that change the learning rate by a metric, "
    "and name variables that differ on purpose with register_local_var. "
    "The first that is not as on the first rank:"
)


@dataclass(frozen=True)
class Comparison:
    """The fingerprints of all ranks. They, and all that follows from them alone, are the same on all ranks.

    Attributes:
        different: bool[size, n]: where a rank's variable is not as on the first rank.
        first: the place of the first rank that takes part. Others may have joined.
        action: that rank's, one of REPLICA_CHECKS.
    """

    different: np.ndarray[Any, Any]
    first: int
    action: str

    @property
    def variables(self) -> list[int]:
        """The places of the variables that differ."""
        return [int(index) for index in np.flatnonzero(self.different.any(axis=0))]

    def places(self, variable: int) -> list[int]:
        """The places of the ranks whose variable differs from the first one's."""
        return [int(place) for place in np.flatnonzero(self.different[:, variable])]


@dataclass(frozen=True)
class Drift:
    """The distance of a rank's variable from the first rank's.

    Attributes:
        distance: relative to the largest weight.
        bound: of what is tolerated.
    """

    distance: float
    bound: float

    @property
    def is_wrong(self) -> bool:
        """True if it is not tolerated."""
        return self.distance > self.bound

    def __str__(self) -> str:
        return f"by {self.distance:.2g} of the largest weight (tolerated: {self.bound:.2g})"


def relative_difference(mine: np.ndarray[Any, Any], reference: np.ndarray[Any, Any], floor: float = 0.0) -> float:
    """The largest difference of two elements, relative to the largest of `reference`, or to `floor` if that is larger.

    Infinite where one of the two is not a finite number and the other is something else.
    """
    largest, scale = 0.0, floor
    with np.errstate(invalid="ignore"):
        for a, b in zip(_chunks(mine), _chunks(reference), strict=True):
            same = (a == b) | (np.isnan(a) & np.isnan(b))
            apart = np.where(same, 0.0, np.abs(a - b))
            largest = max(largest, float(np.max(np.where(np.isnan(apart), np.inf, apart))))
            scale = max(scale, float(np.max(np.where(np.isfinite(b), np.abs(b), 0.0))))
    return 0.0 if largest == 0.0 else largest / scale if scale > 0.0 else math.inf


def _chunks(values: np.ndarray[Any, Any]) -> Iterator[np.ndarray[Any, Any]]:
    flat = values.reshape(-1)
    for begin in range(0, flat.size, _CHUNK):
        yield flat[begin : begin + _CHUNK].astype(np.float64)


class Replicas:
    """The actions of a guard after its comparisons, on this rank.

    Args:
        name: of the comparison; matches its collectives between ranks.
        process_set_id: of the process set whose ranks are compared.
        check: what is tolerated.
    """

    def __init__(self, name: str, process_set_id: int, check: ReplicaCheck) -> None:
        self._name = name
        self._check = check
        self._process_set_id = process_set_id
        self._equal_since = 0  # the step in which they were equal last, or made so
        self._told = False
        self._nan_told = False
        self._looked = 0  # the step of the comparison before

    def settle(
        self, compared: Comparison, named: Sequence[tuple[str, Any]], step: int, whole: Callable[[], Sequence[Any]]
    ) -> str:
        """An error of the program in words; empty if there is none. The same on all ranks.

        All ranks call it with the same comparison: it may run collectives, and assign to the variables.

        Args:
            named: the variables that were compared, with their names for messages.
            step: counted from 0.
            whole: returns all variables that a resync gives the first rank's values.
        """
        self._look_for_nan(named, step)
        since = step - self._equal_since if step >= self._equal_since else step  # smaller: the count was reset
        if not compared.variables:
            self._equal_since = step
            return ""
        members = runtime.members_of_set(self._process_set_id)
        words = _Words(compared, [name for name, _ in named], members.ranks)
        variables = [tensorflow_variable(variable) for _, variable in named]
        with tf.device("CPU:0"):
            floating = {i: variables[i] for i in compared.variables if variables[i].dtype.is_floating}
            references = self._of_first(floating, compared, members)
            apart = self._everyones_drifts(compared, variables, references, since, members)
            wrong = next((index for index in compared.variables if apart[index].is_wrong), None)
            if wrong is None:
                for index, reference in references.items():
                    variables[index].assign(reference)
                self._equal_since = step
                self._tell_of_rounding(members.rank == compared.first, words.of_rounding(apart, step))
                return ""
            where = f"{words.where(wrong)}, {apart[wrong]}"
            if compared.action == "error":
                return f"{ADVICE} {where}"
            if compared.action == "resync":
                self._resync(whole(), compared, members)
                self._equal_since = step
                where += f". All ranks go on with the weights and the optimizer's state of {words.first}"
            if members.rank == compared.first:
                _LOG.warning("the replicas' weights differ in step %d: %s", step + 1, where)
        return ""

    def _resync(self, variables: Sequence[Any], compared: Comparison, members: Members) -> None:
        inner = [tensorflow_variable(variable) for variable in variables]
        numbers = {i: one for i, one in enumerate(inner) if one.dtype.is_floating or one.dtype.is_integer}
        for place, value in self._of_first(numbers, compared, members).items():
            inner[place].assign(value)

    def _look_for_nan(self, named: Sequence[tuple[str, Any]], step: int) -> None:
        """Logs one line on the first rank; the others have the same weights."""
        if runtime.members_of_set(self._process_set_id).rank == 0 and not self._nan_told:
            wrong = [name for name, variable in named if not is_finite(variable)]
            if wrong:
                self._nan_told = True
                _LOG.warning(
                    "the weights hold NaN or infinities since a step from %d to %d: %s, and %d of %d variables in all. "
                    "TFCOLLECTIVE_NAN_CHECK=1 shows with which rank, step and variable it begins",
                    self._looked + 1,
                    step,
                    wrong[0],
                    len(wrong),
                    len(named),
                )
        self._looked = step

    def _of_first(self, variables: Mapping[int, Any], compared: Comparison, members: Members) -> dict[int, Any]:
        """Returns the first rank's values of some variables, by place.

        A sum to which the other ranks add zeros: unlike a broadcast it also works while some ranks have joined.
        """
        is_first = members.rank == compared.first
        references: dict[int, Any] = {}
        for dtype in sorted({variable.dtype.name for variable in variables.values()}):
            places = [index for index, variable in variables.items() if variable.dtype.name == dtype]
            values = [tf.convert_to_tensor(variables[index]) for index in places]
            given = values if is_first else [tf.zeros_like(value) for value in values]
            name = f"{self._name}/weights/{dtype}"
            sums = ops.grouped_allreduce(
                given, op=Sum, prescale=1.0, postscale=1.0, name=name, process_set_id=self._process_set_id
            )
            references.update(zip(places, sums, strict=True))
        return references

    def _everyones_drifts(
        self,
        compared: Comparison,
        variables: Sequence[Any],
        references: dict[int, Any],
        since: int,
        members: Members,
    ) -> dict[int, Drift]:
        """Returns for each variable that differs the drift of the rank which is farthest off: the same on all ranks."""
        floor = _typical_size(variables)
        rows = np.zeros((members.size, len(compared.variables), 2), np.float64)
        for row, index in zip(rows[members.rank], compared.variables, strict=True):
            row[:] = math.inf, 0.0
            if index in references:
                row[0] = relative_difference(variables[index].numpy(), references[index].numpy(), floor)
                row[1] = self._check.bound(variables[index].dtype, since)
        name = f"{self._name}/drift"
        everyones = ops.allreduce(tf.constant(rows), op=Sum, name=name, process_set_id=self._process_set_id).numpy()
        farthest = np.argmax(everyones[..., 0] - everyones[..., 1], axis=0)
        return {
            index: Drift(float(everyones[place, column, 0]), float(everyones[place, column, 1]))
            for column, (index, place) in enumerate(zip(compared.variables, farthest, strict=True))
        }

    def _tell_of_rounding(self, speaks: bool, text: str) -> None:
        """Warns once a guard: what rounds in one step does so in later ones, too."""
        if speaks:
            _LOG.log(logging.INFO if self._told else logging.WARNING, "%s", text)
        self._told = True


@dataclass(frozen=True)
class _Words:
    """The wording of messages about a comparison."""

    compared: Comparison
    names: Sequence[str]
    ranks: Sequence[int]

    def where(self, variable: int) -> str:
        """A variable, and where it is not as on the first rank."""
        return f"{self.names[variable]} on ranks {[self.ranks[place] for place in self.compared.places(variable)]}"

    @property
    def first(self) -> str:
        """The rank whose weights are compared with."""
        return f"rank {self.ranks[self.compared.first]}"

    def of_rounding(self, apart: dict[int, Drift], step: int) -> str:
        """Describes a difference within the tolerance, which was undone."""
        widest = max(apart, key=lambda index: apart[index].distance)
        return (
            f"the replicas' weights differed by rounding in step {step + 1}, most of all {self.where(widest)}, "
            f"{apart[widest]}. All ranks go on with the weights of {self.first}. Ranks with "
            "different numbers of threads or different processors round differently; later differences of this kind "
            "are logged at level info"
        )


def _typical_size(variables: Sequence[Any]) -> float:
    """The root mean square of all weights; 0 if one is not a finite number. The rounding of larger weights stays in one
    that passes zero."""
    squares, count = 0.0, 0
    for variable in variables:
        if variable.dtype.is_floating:
            for part in _chunks(variable.numpy()):
                squares += float(np.dot(part, part))
                count += part.size
    return math.sqrt(squares / count) if count and math.isfinite(squares) else 0.0
