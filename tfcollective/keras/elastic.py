"""Horovod's elastic names for Keras; see ``tfcollective.tensorflow.elastic``."""

from __future__ import annotations

from typing import Any

from tfcollective.tensorflow.elastic import State, refused, run

__all__ = ["CommitStateCallback", "KerasState", "UpdateBatchStateCallback", "UpdateEpochStateCallback", "run"]


class KerasState(State):
    """Not supported."""


class _Callback:
    def __init__(self, *_arguments: Any, **_more: Any) -> None:
        refused(type(self).__name__)


class CommitStateCallback(_Callback):
    """Not supported."""


class UpdateBatchStateCallback(_Callback):
    """Not supported."""


class UpdateEpochStateCallback(_Callback):
    """Not supported."""
