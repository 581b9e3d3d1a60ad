"""Notes, while steps are built or run, what reduces in this process: training that does not is an error.

Functions that are traced already run without a note. So a tape counts from its first use on, as long as the process
lives, and the program's own reductions until :func:`begin_training`.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

_MARK = "_tfcollective_reduced_by_a_tape"
# What is done with a gradient between a tape and an optimizer, such as clipping and scaling, in a graph.
_PASSED = frozenset(
    {"AddN", "AddV2", "Cast", "ClipByValue", "Identity", "IdentityN", "Maximum", "Minimum", "Mul", "Neg"}
    | {"PreventGradient", "RealDiv", "SelectV2", "Sub"}
)


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
    if not _inside.update:
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


def mark(gradient: Any, process_set_id: int) -> None:
    """Marks a gradient as one that a tape has reduced over a process set."""
    setattr(_tensor(gradient), _MARK, process_set_id)


def is_marked(gradient: Any, process_set_id: int) -> bool:
    """True for a gradient that a tape has reduced over this process set; in a graph, also if it was clipped since."""
    pending, seen = [_tensor(gradient)], set()
    while pending:
        tensor = pending.pop()
        if getattr(tensor, _MARK, None) == process_set_id:
            return True
        if tf.is_symbolic_tensor(tensor) and tensor.op.type in _PASSED and id(tensor.op) not in seen:
            seen.add(id(tensor.op))
            pending += tensor.op.inputs
    return False


def _tensor(gradient: Any) -> Any:
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
