"""The model that the ranks train: a linear one whose loss curve is known, and whose steps one process can repeat.

The rows of a step follow from the seed and the step alone, and the ranks divide them among themselves: a step does the
same whatever the size of the world. So all jobs of so many steps end with the same weights, but for the rounding of
sums, and :func:`replay` gets them in one process. A step that was lost, counted twice or taken over in part shows.

Besides the weights there is a load, whose values are whole numbers: it makes the state and its gradients large, and its
sum says exactly how many ranks have taken part in which steps. Needs numpy only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = [
    "BATCH",
    "DIMENSION",
    "LEAST_LOSS",
    "LOAD",
    "NOISE",
    "Replay",
    "batch",
    "gradient",
    "learning_rate",
    "load_of",
    "loss",
    "replay",
]

Array: TypeAlias = npt.NDArray[np.float64]

DIMENSION = 64
BATCH = 48  # rows of a step, of all ranks together
NOISE = 0.5  # standard deviation of what no weights explain
LEAST_LOSS = NOISE**2
LOAD = 1 << 17  # values: 1 MiB
_FIRST_RATE, _DECAY = 0.1, 2.0
_TARGET_SEED = 20
_KINDS_OF_LOAD = 7
_TARGET: Array = np.random.default_rng(_TARGET_SEED).normal(size=DIMENSION)  # the weights to find


def batch(seed: int, step: int, rank: int, size: int) -> tuple[Array, Array]:
    """Returns this rank's share of a step's rows, and their expected outputs."""
    random = np.random.default_rng((seed, step))
    rows = random.normal(size=(BATCH, DIMENSION))
    wanted = rows @ _TARGET + NOISE * random.normal(size=BATCH)
    return rows[rank::size], wanted[rank::size]


def gradient(weights: Array, seed: int, step: int, rank: int, size: int) -> Array:
    """A rank's part of the gradient of half the mean squared error of a step's rows."""
    rows, wanted = batch(seed, step, rank, size)
    return np.asarray(rows.T @ (rows @ weights - wanted) / BATCH)


def learning_rate(step: int) -> float:
    """Returns a rate that falls as 1 / step: the loss keeps falling, and shows how many steps counted."""
    return min(_FIRST_RATE, _DECAY / (step + 1))


def load_of(step: int, rank: int) -> float:
    """Returns the whole number that a rank adds to each value of the load in this step."""
    return float(step % _KINDS_OF_LOAD + rank)


def loss(weights: Array) -> float:
    """The mean squared error over all possible rows: 0.25 at best."""
    return float(LEAST_LOSS + np.sum((weights - _TARGET) ** 2))


@dataclass(frozen=True)
class Replay:
    """The result of a number of steps.

    Attributes:
        weights: at the end.
        load: the value that each element of the load has then.
        losses: after the steps that were asked for.
    """

    weights: Array
    load: float
    losses: tuple[float, ...]


def replay(seed: int, sizes: Sequence[int], at: Iterable[int] = ()) -> Replay:
    """Does the steps of a job in this process.

    Args:
        seed: of the data.
        sizes: how many ranks did each step.
        at: after how many steps the loss is wanted.
    """
    weights, load = np.zeros(DIMENSION), 0.0
    wanted, losses = set(at), {}
    for step, size in enumerate(sizes):
        weights -= learning_rate(step) * gradient(weights, seed, step, 0, 1)
        load += sum(load_of(step, rank) for rank in range(size))
        if step + 1 in wanted:
            losses[step + 1] = loss(weights)
    return Replay(weights, load, tuple(losses[step] for step in sorted(losses)))
