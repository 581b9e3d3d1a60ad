"""Files of models where all ranks train one: rank 0 writes them, and all ranks read those of rank 0.

So a script may save to a directory that only one host has, and load from there.
"""

from __future__ import annotations

import functools
import inspect
import io
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tfcollective import _runtime as runtime
from tfcollective.keras._parallel import mode
from tfcollective.tensorflow._objects import broadcast_object


def install(keras: Any, replace_method: Callable[..., bool]) -> None:
    """Changes the functions that write and read Keras's files; once a process.

    Args:
        keras: Keras 3.
        replace_method: see ``tfcollective.keras._copies``.
    """
    from keras.src.saving import saving_api  # noqa: TID251  # install() is for Keras 3

    for name, around in (
        ("save_model", _once),
        ("save_weights", _once),
        ("load_model", _of_rank_zero),
        ("load_weights", _of_rank_zero),
    ):
        replace_everywhere(name, getattr(saving_api, name), around(getattr(saving_api, name)))
    replace_method(keras.Model, "export", lambda original, *args, **kwargs: _once(original)(*args, **kwargs))


def replace_everywhere(name: str, function: Any, replacement: Any) -> None:
    """In all modules of Keras that have the function."""
    for place, module in list(sys.modules.items()):
        if place.partition(".")[0] == "keras" and vars(module).get(name) is function:
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


def _of_rank_zero(read: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(read)
    def together(*args: Any, **kwargs: Any) -> Any:
        if mode.active() is None:
            return read(*args, **kwargs)
        bound = inspect.signature(read).bind(*args, **kwargs)
        path = Path(str(bound.arguments["filepath"]))
        mine = path.read_bytes() if runtime.rank() == 0 and path.is_file() else None
        content = broadcast_object(mine, name=f"file {path.name}")
        if runtime.rank() == 0 or content is None:  # a directory, an address, or nothing: Keras says so
            return read(*args, **kwargs)
        with tempfile.TemporaryDirectory() as folder:
            bound.arguments["filepath"] = Path(folder, path.name)
            bound.arguments["filepath"].write_bytes(content)
            return read(*bound.args, **bound.kwargs)

    return together
