"""Random numbers: equal on all ranks where data are shuffled, each rank's own where layers draw them.

Rank 0's are those of one process, but for what layers of Keras 2 draw: it depends on the operations in their graph.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

from tfcollective.keras._variables import layers_of
from tfcollective.tensorflow._objects import broadcast_object

_STRIDE = 7919  # between the seeds of two ranks


def share_random_states() -> None:
    """Gives all ranks the states of rank 0's generators: Python's, NumPy's, and TensorFlow's global seed, which becomes
    one that is drawn if the script has set none. All ranks call it.
    """
    seed = context.global_seed()
    mine = (random.getstate(), np.random.get_state(), secrets.randbits(31) if seed is None else seed)
    python, numpy, shared = broadcast_object(mine, name="random states")
    random.setstate(python)
    np.random.set_state(numpy)
    if seed != shared:
        tf.random.set_seed(shared)


@contextmanager
def own_random_numbers(model: Any, rank: int) -> Iterator[None]:
    """Within it, the layers of a model draw other numbers on each rank from states that they have."""
    states = [state for layer in (model, *layers_of(model)) for state in _states(layer)]
    set_apart(states, rank)
    try:
        yield
    finally:
        set_apart(states, -rank)


@contextmanager
def own_seed(rank: int) -> Iterator[None]:
    """Within it, what is traced draws other numbers on each rank from ``tf.random``, as layers of Keras 2 do."""
    graph = tf.compat.v1.get_default_graph()
    shared = graph.seed
    if tf.executing_eagerly() or shared is None:
        yield
        return
    graph.seed = shared + rank * _STRIDE
    try:
        yield
    finally:
        graph.seed = shared


def _states(layer: Any) -> list[tuple[Any, int]]:
    """The variables from which a layer draws: see ``set_apart``."""
    generator: Any = getattr(getattr(layer, "_random_generator", None), "_generator", None)  # Keras 2
    more = [] if generator is None else [(generator.state, -1)]
    return [*((one.state, 0) for one in getattr(layer, "_seed_generators", ())), *more]


def set_apart(states: list[tuple[Any, int]], rank: int) -> None:
    """Makes states that all ranks have alike a rank's own; with a negative rank, alike again.

    Args:
        states: variables, each with the place of a number in it that all that is drawn depends on.
        rank: of this process.
    """
    for state, place in states:
        value = tf.convert_to_tensor(state).numpy()
        sums = value.astype(np.int64)
        sums[place] += rank * _STRIDE
        state.assign(sums.astype(value.dtype))
