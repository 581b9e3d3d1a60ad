"""Reports the progress of ``fit`` to ``tfcollective status``."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from tfcollective import _runtime as runtime
from tfcollective._runtime.step_rate import StepRate
from tfcollective.keras._optimizers import optimizers_of


class FitProgress:
    """Publishes rank 0's step, epoch, steps a second and loss every few seconds, from the hooks of a callback.

    In an elastic job rank 0 may be another process later: that one begins to count then.
    """

    def __init__(self) -> None:
        self._rate: StepRate | None = None
        self._epoch = 0
        self._logs: Mapping[str, Any] = {}

    def begin_epoch(self, epoch: int) -> None:
        """An epoch begins, with Keras's number of it."""
        self._epoch = epoch

    def step(self, callback: Any, logs: Any, *, last: bool = False) -> None:
        """A step is done, or with `last` all of them.

        Args:
            callback: has Keras's ``model`` and ``params``.
            logs: the metrics so far in this epoch, by name; may be None.
        """
        if runtime.rank() != 0:
            self._rate = None
            return
        self._logs = logs or self._logs
        if self._rate is None:
            self._rate = StepRate(
                runtime.publish,
                lambda: _steps(callback.model),
                total=lambda: _total(callback.params),
                more=lambda: self._more(callback.params),
            )
        self._rate.step(last=last)
        if last:
            self._rate = None

    def _more(self, params: Mapping[str, Any]) -> dict[str, object]:
        found: dict[str, object] = {"epoch": self._epoch + 1}
        if params.get("epochs"):
            found["epochs"] = params["epochs"]
        with contextlib.suppress(TypeError, ValueError):  # a step of its own may return anything as its loss
            found["loss"] = float(self._logs["loss"]) if "loss" in self._logs else None
        return {name: value for name, value in found.items() if value is not None}


def _total(params: Mapping[str, Any]) -> int | None:
    """Returns the number of steps of this run, where the steps of an epoch are known, else None."""
    steps, epochs = params.get("steps"), params.get("epochs")
    return steps * epochs if steps and epochs else None


def _steps(model: Any) -> int:
    """Returns the number of steps done, by the optimizer that has done the most."""
    return max((int(optimizer.iterations) for optimizer in optimizers_of(model).values()), default=0)
