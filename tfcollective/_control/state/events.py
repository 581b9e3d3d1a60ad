"""What happens to a job besides requests, and what follows from an event of either kind: values."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from tfcollective._base.failures import ExitRecord
from tfcollective._base.tasks import TaskKey


@dataclass(frozen=True)
class Admit:
    """A task takes part in the job from now on; ``change``: see :meth:`Rounds.admit`."""

    task: TaskKey
    change: int = 0


@dataclass(frozen=True)
class CloseAdmission:
    """No further task will take part: ranks that are too few need not wait for one."""


@dataclass(frozen=True)
class Forsake:
    """The connection by which a task waits for the first world has ended; see :meth:`Membership.forsake`."""

    task: TaskKey


@dataclass(frozen=True)
class Tick:
    """Time has passed: waits may be over, tasks may be silent."""


class Topic(Enum):
    """What those that wait may wait for. Besides, a :class:`StoreKey`, and a :class:`Presence` for its silence."""

    TIME = "time"  # when the next wait is over
    ROUND = "round"  # what a join has come to
    ENDS = "ends"  # of processes
    OUTPUT = "output"
    NODES = "nodes"  # that have enrolled


@dataclass(frozen=True)
class StoreKey:
    """The value of this key."""

    key: str


@dataclass(frozen=True)
class JobEvent:
    """One thing that a launcher has to act on.

    Attributes:
        exited: how a task's process has ended.
        dropped: a member that takes part no longer though its process may live, and why.
        silent: a task that sends no heartbeat, and for how many seconds it has given none; again each time that
            the limit has passed once more.
        trained: whether rank 0's process has ended.
    """

    exited: ExitRecord | None = None
    dropped: tuple[TaskKey, str] | None = None
    silent: tuple[TaskKey, float] | None = None
    trained: bool = False


class Effects(NamedTuple):
    """What follows from an event.

    Attributes:
        reply: the answer, if it was a request.
        changed: the topics that have changed: those that wait for them are to look again.
        news: what the launcher has to act on, in order.
    """

    reply: Any
    changed: tuple[Hashable, ...]
    news: tuple[JobEvent, ...]
