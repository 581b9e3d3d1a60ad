"""What ``tfcollective run --check-build`` prints: what this installation can do."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import util

from tfcollective._version import __version__
from tfcollective.errors import TfCollectiveError
from tfcollective.launch.registry import known_launchers
from tfcollective.settings import Settings

__all__ = ["describe_build"]


def describe_build() -> str:
    """A table in horovodrun's form: ``[X]`` stands before what is there."""
    groups = {
        "Available frameworks": [("TensorFlow", _is_there("tensorflow")), ("Keras", _is_there("keras"))],
        "Available controllers": [("tfcollective", True)],
        "Available tensor operations": [("native (TCP, shared memory)", _native_loads())],
        "Available launchers": [(name, True) for name in known_launchers()],
    }
    return "\n".join([f"tfcollective v{__version__}:", *_lines(groups)]) + "\n"


def _lines(groups: dict[str, list[tuple[str, bool]]]) -> Iterator[str]:
    for title, rows in groups.items():
        yield ""
        yield f"{title}:"
        yield from (f"    [{'X' if there else ' '}] {name}" for name, there in rows)


def _is_there(module: str) -> bool:
    return util.find_spec(module) is not None


def _native_loads() -> bool:
    from tfcollective import _native

    try:
        _native.load(Settings.load().library)
    except TfCollectiveError:
        return False
    return True
