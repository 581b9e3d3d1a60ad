"""The identity of a process: a value."""

from __future__ import annotations

from dataclasses import dataclass, field

from tfcollective.tasks import TaskKey
from tfcollective.topology import Endpoint

__all__ = ["Identity"]


@dataclass(frozen=True)
class Identity:
    """Who a process is in its job.

    Attributes:
        task: its role.
        world_size: the number of processes that take part in collectives.
        coordinator: where they meet; None when the world is this process alone.
        job_id: the name of the job.
        key: the job key that authenticates everything; None exactly when ``coordinator`` is None.
        source: what told us, for logs: ``launcher`` or ``single``.
        node_id: processes with equal node ids can share memory.
    """

    task: TaskKey
    world_size: int
    coordinator: Endpoint | None
    job_id: str
    key: bytes | None = field(repr=False)
    source: str
    node_id: str
