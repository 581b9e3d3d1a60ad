"""Horovod's elastic names, so that a script that uses them gets an error that says what to do instead."""

from __future__ import annotations

from typing import Any, NoReturn

from tfcollective.errors import UnsupportedError

__all__ = ["ObjectState", "State", "TensorFlowKerasState", "TensorFlowState", "run"]

_ADVICE = (
    "elastic.{name}: a running job does not grow, shrink or replace ranks. Save checkpoints "
    "(tf.train.CheckpointManager, tfcollective.keras.BackupAndRestore) and run the job with --max-restarts N: "
    "when a rank fails, all are started again and go on from there."
)


def refused(name: str) -> NoReturn:
    """Raises UnsupportedError with the advice."""
    raise UnsupportedError(_ADVICE.format(name=name))


def run(func: Any) -> NoReturn:
    """Not supported."""
    del func
    refused("run")


class State:
    """Not supported."""

    def __init__(self, *_arguments: Any, **_more: Any) -> None:
        refused(type(self).__name__)


class ObjectState(State):
    """Not supported."""


class TensorFlowState(State):
    """Not supported."""


class TensorFlowKerasState(State):
    """Not supported."""
