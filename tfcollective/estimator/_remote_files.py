"""Estimators whose directory is where TensorFlow has no file system: they work in a local one, from which files are
moved."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tensorflow as tf

from tfcollective._base.errors import UnsupportedError
from tfcollective.estimator._support import estimators
from tfcollective.files import Place, Workspace, as_place, find_files, is_url, list_files


class PushListener(tf.compat.v1.train.CheckpointSaverListener):  # type: ignore[misc]  # TensorFlow is not typed
    """Moves every checkpoint once it is written, with what else is there."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    def after_save(self, session: Any, global_step_value: Any) -> None:
        """The checkpoint's files are whole."""
        self._workspace.push()


def place_of(estimator: Any) -> Place:
    """Returns the estimator's ``model_dir``. Raises ConfigError when that is a malformed URL."""
    return as_place(estimator.model_dir, "estimator: model_dir")


@contextmanager
def brought_here(estimator: Any, wanted: Callable[[str], Iterable[str]]) -> Iterator[tuple[Any, Workspace]]:
    """The Estimator and the directory that it works in: its own, or one on this machine that stands for a URL.

    Args:
        estimator: is left as it is.
        wanted: the files that it needs here, from the URL of its directory.

    Raises:
        UnsupportedError: an Estimator with ``warm_start_from`` and a URL.
        ConfigError: the URL cannot be used; OSError: it is out of reach.
    """
    place = place_of(estimator)
    with Workspace(place) as workspace:
        if is_url(place):
            workspace.fetch(wanted(str(place)))
            estimator = _copy(estimator, workspace.directory)
        yield estimator, workspace


def training_files(url: str) -> Iterable[str]:
    """Yields the files from which a chief resumes: its checkpoints, and the file that names them."""
    return [name for name in list_files(url) if not name.startswith("events.")]


def evaluation_events(url: str) -> Iterable[str]:
    """Yields the results of an evaluator before it was restarted: exporters look for the best of them."""
    return [name for name in find_files(url) if name.startswith("eval") and ".tfevents." in name]


def _copy(estimator: Any, directory: Path) -> Any:
    if getattr(estimator, "_warm_start_settings", None) is not None:
        raise UnsupportedError(
            f"estimator: warm_start_from with the model_dir {estimator.model_dir}: start from a local directory"
        )
    config = estimator.config.replace(model_dir=str(directory))
    return estimators().Estimator(model_fn=estimator.model_fn, config=config)
