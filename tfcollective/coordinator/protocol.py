"""What the coordinator and those who ask it have to agree on."""

from __future__ import annotations

from tfcollective.tasks import TaskKey

__all__ = ["MAX_BODY_BYTES", "NODES", "TRAINING_ENDED", "experiment_key"]

MAX_BODY_BYTES = 4 << 20
NODES = "nodes"  # the key of the list of what enrolled nodes have said of themselves
TRAINING_ENDED = "training/ended"  # this key is there once rank 0's process has ended


def experiment_key(task: TaskKey) -> str:
    """The key under which a trainer says where its experiment writes: ``{"directory": path or null}``."""
    return f"experiment/{task}"
