"""Notes, while steps are built or run, what reduces in this process: training that does not is an error.

Functions that are traced already run without a note. So a tape counts from its first use on, as long as the process
lives, and the program's own reductions until :func:`begin_training`.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass


@dataclass
class _Notes:
    tapes: int = 0
    reductions: int = 0
    updates: int = 0


class _Inside(threading.local):
    update = False


_notes = _Notes()
_inside = _Inside()


def note_tape() -> None:
    """A ``DistributedGradientTape`` reduces gradients."""
    _notes.tapes += 1


def note_reduction() -> None:
    """The program reduces tensors itself, which may be gradients."""
    _notes.reductions += 1


def begin_training() -> None:
    """``fit`` begins: what the program has reduced before it were not this training's gradients."""
    _notes.reductions = 0


def updates() -> int:
    """The number of updates that distributed optimizers have begun."""
    return _notes.updates


def are_noted() -> bool:
    """True if the gradients of an update that is made now may have been reduced."""
    return _inside.update or _notes.tapes > 0 or _notes.reductions > 0


class DistributedUpdate:
    """A context in which a distributed optimizer makes an update: it reduces for all optimizers that it calls."""

    def __enter__(self) -> None:
        _notes.updates += 1
        self._before, _inside.update = _inside.update, True

    def __exit__(self, *_error: object) -> None:
        _inside.update = self._before
