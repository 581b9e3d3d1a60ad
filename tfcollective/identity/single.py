"""The identity of a process that is alone."""

from __future__ import annotations

import os

from tfcollective.identity.model import Identity
from tfcollective.tasks import WORKER, TaskKey

__all__ = ["SOURCE", "identity"]

SOURCE = "single"


def identity(node_id: str) -> Identity:
    """A world of one: no coordinator, no key."""
    return Identity(
        task=TaskKey(WORKER, 0),
        world_size=1,
        coordinator=None,
        job_id=f"single-{os.getpid()}",
        key=None,
        source=SOURCE,
        node_id=node_id,
    )
