"""Random numbers: equal on all ranks where data are shuffled, each rank's own where layers draw them."""

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
    """Within it, the layers of a model draw other numbers on each rank; rank 0's are those of one process."""
    layers = (model, *layers_of(model))
    states = [one.state for layer in layers for one in getattr(layer, "_seed_generators", ())]
    offset = np.array([rank * _STRIDE, 0])
    _add(states, offset)
    try:
        yield
    finally:
        _add(states, -offset)


def _add(states: list[Any], offset: Any) -> None:
    for state in states:
        value = tf.convert_to_tensor(state).numpy()
        state.assign((value.astype(np.int64) + offset).astype(value.dtype))
