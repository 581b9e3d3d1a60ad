"""What a function that runs on every rank may return in place of a result: something to train."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

__all__ = ["Trainable"]


class Trainable(ABC):
    """An experiment. :func:`tfcollective.run` calls :meth:`train` on every rank whose function returns one."""

    @abstractmethod
    def train(self) -> Any:
        """Joins the world, trains, and returns this rank's result, which can be pickled."""
