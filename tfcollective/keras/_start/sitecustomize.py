"""Runs first in the ranks of ``tfcollective run --data-parallel``, whose script does not know tfcollective.

As soon as Keras is imported, the process joins the others, and Keras's trainer divides its work. Before that, all ranks
seed what draws random numbers alike, since the script may make its data with them: Python's generator, and NumPy's when
it is imported. A script that seeds them itself has its own seeds.

Nothing heavy may be imported here. A ``sitecustomize`` of the user's is run, too.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import itertools
import random
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from tfcollective._base.settings import Settings


class _Watcher:
    """Calls a function when a module has been imported, in ``sys.meta_path``."""

    def __init__(self, watched: dict[str, Callable[[ModuleType], None]]) -> None:
        self._watched = watched
        self._finding: set[str] = set()

    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> Any:
        """Finds a watched module as the other finders do."""
        if name not in self._watched or name in self._finding:
            return None
        self._finding.add(name)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._finding.discard(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            self._watched.pop(name, lambda _module: None)(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _seed_numpy(numpy: ModuleType) -> None:
    """Also generators that are made without a seed, which otherwise ask the operating system."""
    numpy.random.seed(_seed)
    make, numbers = numpy.random.default_rng, itertools.count(_seed)

    def default_rng(seed: Any = None) -> Any:
        return make(next(numbers) if seed is None else seed)

    default_rng.__doc__ = make.__doc__
    numpy.random.default_rng = default_rng


def _divide(keras: ModuleType) -> None:
    from tfcollective.keras._parallel.start import refuse_other

    refuse_other(keras)


def _run_next() -> None:
    """Runs the ``sitecustomize`` that this one stands before."""
    here = str(Path(__file__).parent)
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", [path for path in sys.path if path != here])
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


_run_next()
_settings = Settings.load()
_seed = zlib.crc32((_settings.job_id or "").encode())
if _settings.data_parallel:
    random.seed(_seed)
    # "keras" is Keras 3, and Keras 2 with TensorFlow 2.15; "tf_keras" is Keras 2.
    sys.meta_path.insert(0, _Watcher({"numpy": _seed_numpy, "keras": _divide, "tf_keras": _divide}))
