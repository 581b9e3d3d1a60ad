"""Files of models where all ranks train one: rank 0 writes them, and all ranks read those of rank 0.

So a script may save to a directory that only one host has, and load from there.
"""

from __future__ import annotations

import functools
import glob
import inspect
import io
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tfcollective import _runtime as runtime
from tfcollective.keras._parallel import mode
from tfcollective.tensorflow._objects import broadcast_object


class _Reading(threading.local):
    by_itself = False  # a callback that only rank 0 has reads


_reading = _Reading()


def install(keras: Any, replace_method: Callable[..., bool]) -> None:
    """Changes the functions that write and read Keras's files; once a process.

    Args:
        keras: the module.
        replace_method: see ``tfcollective.keras._copies``.
    """
    saving_api: Any = sys.modules[keras.Model.__module__].saving_api  # type: ignore[attr-defined]
    for name, around in (
        ("save_model", _once),
        ("save_weights", _once),
        ("load_model", _of_rank_zero),
        ("load_weights", _of_rank_zero),
    ):
        replace_everywhere(name, getattr(saving_api, name), around(getattr(saving_api, name)))
    for kind in (keras.callbacks.BackupAndRestore, keras.callbacks.ModelCheckpoint):
        if "on_train_begin" in vars(kind):
            replace_method(kind, "on_train_begin", _by_itself)
    replace_method(keras.Model, "export", lambda original, *args, **kwargs: _once(original)(*args, **kwargs))


def replace_everywhere(name: str, function: Any, replacement: Any) -> None:
    """In all modules of Keras that have the function."""
    for place, module in list(sys.modules.items()):
        if place.partition(".")[0] in ("keras", "tf_keras") and vars(module).get(name) is function:
            setattr(module, name, replacement)


def _once(write: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(write)
    def on_rank_zero(*args: Any, **kwargs: Any) -> Any:
        if mode.active() is None or runtime.rank() == 0 or _is_open(write, *args, **kwargs):
            return write(*args, **kwargs)
        return None

    return on_rank_zero


def _is_open(write: Callable[..., Any], *args: Any, **kwargs: Any) -> bool:
    """True where a model is written into an object in memory, which each rank has."""
    return isinstance(inspect.signature(write).bind(*args, **kwargs).arguments.get("filepath"), io.IOBase)


def _by_itself(original: Callable[..., Any], callback: Any, *args: Any, **kwargs: Any) -> Any:
    """A backup is restored on rank 0, and then the other ranks get its weights."""
    _reading.by_itself = True
    try:
        return original(callback, *args, **kwargs)
    finally:
        _reading.by_itself = False


def _of_rank_zero(read: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(read)
    def together(*args: Any, **kwargs: Any) -> Any:
        if mode.active() is None or _reading.by_itself:
            return read(*args, **kwargs)
        bound = inspect.signature(read).bind(*args, **kwargs)
        path = Path(str(bound.arguments["filepath"]))
        files = broadcast_object(_files(path) if runtime.rank() == 0 else {}, name=f"file {path.name}")
        if runtime.rank() == 0 or not files:  # an address, or nothing: Keras says so
            return read(*args, **kwargs)
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            for name, content in files.items():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes(content)
            bound.arguments["filepath"] = str(folder / path.name)
            result = read(*bound.args, **bound.kwargs)
            if len(files) > 1:  # a checkpoint is read when variables are made
                weakref.finalize(bound.arguments.get("model", result), stack.pop_all().close)
            return result

    return together


def _files(path: Path) -> dict[str, bytes]:
    """The files of a saved model, by their names: one, those of a directory, or those of a checkpoint of TensorFlow."""
    name = glob.escape(path.name)
    if path.is_file():  # the weights of one that ends in .json are in others beside it
        parts = [path, *path.parent.glob(f"{name.removesuffix('.weights.json')}_*.weights.h5")]
    else:
        parts = list(path.rglob("*") if path.is_dir() else path.parent.glob(f"{name}.*"))
    return {str(one.relative_to(path.parent)): one.read_bytes() for one in parts if one.is_file()}
