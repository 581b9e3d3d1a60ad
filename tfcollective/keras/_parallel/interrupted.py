"""Evaluations that the loss of a rank has interrupted: what the others have counted is not counted again.

In an elastic job the ranks go back to their last commit, and evaluate again from there. A rank whose weights are the
same then keeps what it has counted, and all ranks take turns with the batches that nobody has counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import tensorflow as tf

from tfcollective import _runtime as runtime
from tfcollective.elastic._kept import kept_result
from tfcollective.keras._parallel.division import Division
from tfcollective.keras._replica_state import metric_variables
from tfcollective.tensorflow._gradients import variable_key
from tfcollective.tensorflow._objects import allgather_object
from tfcollective.tensorflow._reductions import unnoted


@dataclass(frozen=True)
class Counted:
    """The counts of a rank in a run.

    Attributes:
        states: of each metric, of its variables.
        others: what its last step has returned beside results of metrics.
        weight: of `others`.
    """

    states: list[list[Any]]
    others: dict[str, Any]
    weight: float


@dataclass(frozen=True)
class Part:
    """What this rank has counted of an evaluation.

    Attributes:
        counted: in each world.
        places: of the batches.
        names: of the logs.
    """

    counted: list[Counted] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    names: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Attempt:
    """An evaluation in an elastic job, which may have been interrupted before.

    Attributes:
        place: among the evaluations since the last commit.
        weights: of the model.
        data: says of which kind they are.
        before: what earlier attempts have counted.
    """

    place: int
    weights: list[Any]
    data: str
    before: Part

    def keep(self, part: Part) -> None:
        """Keeps what this rank has counted until the next commit."""
        kept_result.keep(self.place, replace(self, before=part))


def begin_attempt(model: Any, arguments: Mapping[str, Any], *, mergeable: bool) -> Attempt | None:
    """The attempt that an evaluation is; None outside of ``elastic.run`` in an elastic job.

    Args:
        model: built.
        arguments: of ``evaluate``, by name.
        mergeable: the counts of two parts of the evaluation become one.
    """
    place = kept_result.next_place()
    if place is None or not runtime.settings().elastic:
        return None
    own = {variable_key(one) for one in metric_variables(model)}
    variables = [one for one in model.weights if hasattr(one, "assign") and variable_key(one) not in own]
    now = Attempt(place, [tf.convert_to_tensor(one) for one in variables], _kind_of(arguments), Part())
    earlier: Attempt | None = kept_result.at(place)
    if earlier is None or not mergeable or earlier.data != now.data or not _are_equal(earlier.weights, now.weights):
        return now
    return replace(now, before=earlier.before)


def rest_of(division: Division, attempt: Attempt) -> Division:
    """The division of the batches that no rank has evaluated in an earlier attempt; all ranks call it."""
    with unnoted():
        everyones = allgather_object(attempt.before.places, name="batches of an evaluation")
    return replace(division, evaluated=tuple(sorted({place for places in everyones for place in places})))


def _kind_of(arguments: Mapping[str, Any]) -> str:
    """Tells evaluations apart, should a program make others than before."""
    x = arguments.get("x")
    if isinstance(x, tf.data.Dataset):
        kind: Any = (x.element_spec, int(x.cardinality()))
    else:
        leaves = tf.nest.flatten([x, arguments.get("y"), arguments.get("sample_weight")])
        kind = [(type(one).__name__, getattr(one, "shape", None)) for one in leaves]
    return f"{kind} {arguments.get('batch_size')} {arguments.get('steps')}"


def _are_equal(some: Sequence[Any], others: Sequence[Any]) -> bool:
    pairs = zip(some, others, strict=True)
    return len(some) == len(others) and all(bool(tf.reduce_all(tf.equal(one, other))) for one, other in pairs)
