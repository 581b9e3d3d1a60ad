"""The four figures of an evaluator."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Figures:
    """The figures of an evaluator's work.

    Attributes:
        awake_time_ratio: the part of its time in which it evaluated, 0 to 1. Near 1 it does not keep up.
        eval_step_mean_duration: seconds a batch.
        last_training_step: of the checkpoint that was evaluated last; None before the first.
        nb_eval_steps: how many batches it has evaluated.
    """

    awake_time_ratio: float = 0.0
    eval_step_mean_duration: float = 0.0
    last_training_step: int | None = None
    nb_eval_steps: int = 0


class Meter:
    """Adds up what the figures are made of; `started` and `now` are seconds on one clock."""

    def __init__(self, started: float, last_training_step: int | None = None) -> None:
        self._started = started
        self._last = last_training_step
        self._awake = 0.0
        self._steps = 0
        self._step_seconds = 0.0

    def evaluated(self, awake: float, steps: int, step_seconds: float, training_step: int | None) -> None:
        """Counts one checkpoint: it took `awake` seconds, `step_seconds` of them in `steps` batches."""
        self._awake += awake
        self._steps += steps
        self._step_seconds += step_seconds
        if training_step is not None:
            self._last = training_step

    def figures(self, now: float) -> Figures:
        """The figures as of `now`."""
        lived = max(now - self._started, self._awake, 1e-9)
        mean = self._step_seconds / self._steps if self._steps else 0.0
        return Figures(self._awake / lived, mean, self._last, self._steps)
