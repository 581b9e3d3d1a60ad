"""Callbacks that write where TensorFlow has no file system: they do it on the local disk, and files are moved."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tensorflow as tf

from tfcollective.files import Workspace

# What Keras's callbacks call the place where they write.
_PLACES = {"ModelCheckpoint": "filepath", "TensorBoard": "log_dir", "CSVLogger": "filename"}
_EVERY_S = 30.0


class PushCallback(tf.keras.callbacks.Callback):  # type: ignore[misc]  # Keras is not typed
    """Moves what the callbacks before it have written: after every epoch, and within a long one every half minute."""

    def __init__(self, workspace: Workspace) -> None:
        super().__init__()
        self._workspace = workspace
        self._pushed = time.monotonic()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Copies files at a moment when none is being written: all are complete."""
        if time.monotonic() - self._pushed > _EVERY_S:
            self._push()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """The epoch's checkpoint is written."""
        self._push()

    def _push(self) -> None:
        self._workspace.push()
        self._pushed = time.monotonic()


@contextmanager
def redirected(callbacks: Iterable[Any], url: str, directory: Path) -> Iterator[None]:
    """Makes Keras's callbacks that write at the URL, or below, write into the directory instead while it is open."""
    changed: list[tuple[Any, str, str]] = []
    try:
        for callback in callbacks:
            for kind, attribute in _PLACES.items():
                if not isinstance(callback, getattr(tf.keras.callbacks, kind)):
                    continue
                place = str(getattr(callback, attribute))
                if place == url or place.startswith(f"{url}/"):
                    changed.append((callback, attribute, place))
                    target = directory / place[len(url) :].lstrip("/")
                    target.parent.mkdir(parents=True, exist_ok=True)
                    setattr(callback, attribute, str(target))
        yield
    finally:
        for callback, attribute, place in changed:
            setattr(callback, attribute, place)
