"""What a replica check compares, what it tolerates, and what it does about the rest."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from tfcollective import _runtime as runtime
from tfcollective._base.errors import InvalidArgumentError
from tfcollective._base.settings import REPLICA_CHECKS

_ROUNDINGS_PER_STEP = 16  # how often a step may round the largest weight of a variable by half a unit in its last place


@dataclass(frozen=True, kw_only=True)
class ReplicaCheck:
    """Which variables the replica check of an optimizer compares, and what it does about those that differ.

    What is tolerated is taken back: all ranks take the first rank's weights. The first rank's `action` is that of all.

    Attributes:
        action: for larger differences. "error": on all ranks, with the variable, the ranks and the size of the
            difference; "warn": one line, and the weights stay; "resync": all ranks take the first rank's weights, and
            its optimizer's state unless variables are local. None: ``TFCOLLECTIVE_REPLICA_CHECK``.
        tolerance: the largest difference that is tolerated, relative to the largest weight of a variable, which at
            least is the root mean square of all weights. None: as much as rounding explains.
        variables: those that are compared: patterns of their names ("dense/*"), or a function that is true of a
            variable. None: all that are trained and not local.

    Raises:
        InvalidArgumentError: an unknown action, or a negative tolerance.
    """

    action: str | None = None
    tolerance: float | None = None
    variables: Sequence[str] | Callable[[Any], bool] | None = None

    def __post_init__(self) -> None:
        if self.action is not None and self.action not in REPLICA_CHECKS:
            raise InvalidArgumentError(f"action: expected one of {', '.join(REPLICA_CHECKS)}, got {self.action!r}")
        if self.tolerance is not None and not self.tolerance >= 0:
            raise InvalidArgumentError(f"tolerance: expected 0 or more, got {self.tolerance}")
        if isinstance(self.variables, str):
            raise InvalidArgumentError(f"variables: expected a list of patterns, got {self.variables!r}")

    @property
    def effective_action(self) -> str:
        """One of REPLICA_CHECKS."""
        return self.action or runtime.settings().replica_check

    def compares(self, name: str, variable: Any) -> bool:
        """True for a variable that is compared."""
        chosen = self.variables
        if chosen is None:
            return True
        return bool(chosen(variable)) if callable(chosen) else any(fnmatchcase(name, one) for one in chosen)

    def bound(self, dtype: Any, steps: int) -> float:
        """Returns how far variables of a floating type may be apart that were equal so many steps ago."""
        return rounding_bound(_epsilon(dtype), steps) if self.tolerance is None else self.tolerance


def rounding_bound(epsilon: float, steps: int) -> float:
    """Returns how far rounding takes weights apart in so many steps, relative to the largest of them.

    It adds up from step to step, and is never more than half of the digits of the type.

    Args:
        epsilon: between 1 and the next number of the type.
    """
    return min(_ROUNDINGS_PER_STEP * epsilon * max(steps, 1), math.sqrt(epsilon))


def _epsilon(dtype: Any) -> float:
    """Between 1 and the next number of a floating type of TensorFlow."""
    one = np.ones((), dtype.as_numpy_dtype)
    return float(np.nextafter(one, one + one) - one)
