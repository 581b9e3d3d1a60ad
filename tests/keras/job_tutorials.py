"""Runs scripts that know nothing of tfcollective, one after the other, and saves the numbers that each one leaves.

Usage: job_tutorials.py FOLDER SCRIPT...: writes FOLDER/RANK.npz.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import tfcollective


def numbers_in(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """The histories, results and arrays among a script's variables."""
    if isinstance(value, tf.keras.callbacks.History):
        value = value.history
    if isinstance(value, dict):
        for key, one in value.items():
            yield from numbers_in(one, f"{name}/{key}")
    elif isinstance(value, list):
        for place, one in enumerate(value):
            yield from numbers_in(one, f"{name}/{place}")
    elif isinstance(value, int | float | np.ndarray | np.generic) and np.asarray(value).dtype.kind in "iuf":
        yield name, value


found: dict[str, Any] = {}
for script in map(Path, sys.argv[2:]):
    variables = runpy.run_path(str(script), run_name="__main__")
    found |= dict(numbers_in({name: one for name, one in variables.items() if name[0] != "_"}, script.stem))
rank = tfcollective.rank() if tfcollective.is_initialized() else 0
np.savez(Path(sys.argv[1], str(rank)), **found)
