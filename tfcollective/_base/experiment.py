"""Experiments: what a function that runs in every task may return in place of a result, to be trained and evaluated."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from tfcollective._base.errors import UnsupportedError


class Trainable(ABC):
    """An experiment. Where the function returns one, :func:`tfcollective.run` calls :meth:`train` on every rank, and
    :meth:`evaluate` in the evaluator."""

    @abstractmethod
    def train(self) -> Any:
        """Joins the world, trains, and returns this rank's result, which can be pickled."""

    def evaluate(self) -> Any:
        """The evaluator's part: follows the checkpoints until training has ended.

        Raises:
            UnsupportedError: there is nothing to evaluate.
        """
        raise UnsupportedError(f"a {type(self).__name__} is not evaluated beside training: leave the evaluator out")

    def output_dir(self) -> str | None:
        """The folder to which it writes what TensorBoard can show; None: it writes nothing."""
        return None
