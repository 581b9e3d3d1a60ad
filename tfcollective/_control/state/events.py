"""The events of a job other than requests, and the effects of events of both kinds: values."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from tfcollective._base.failures import ExitRecord
from tfcollective._base.tasks import TaskKey
from tfcollective._control.state.stalls import Stall


@dataclass(frozen=True)
class Admit:
    """A task takes part in the job from now on; ``change``: see :meth:`Rounds.admit`."""

    task: TaskKey
    change: int = 0


@dataclass(frozen=True)
class CloseAdmission:
    """No further task will join: ranks that are too few need not wait for one."""


@dataclass(frozen=True)
class Forsake:
    """The connection by which a task waits for the first world has ended; see :meth:`Membership.forsake`."""

    task: TaskKey


@dataclass(frozen=True)
class Tick:
    """Time has passed: waits may be over, tasks may be silent."""


@dataclass(frozen=True)
class AskStacks:
    """Asks the agents for the stacks of these tasks, or of all; the reply is the number of the dump."""

    tasks: tuple[TaskKey, ...] = ()


@dataclass(frozen=True)
class EndDump:
    """Nobody waits for this dump any longer; the reply is what has come: :class:`DumpedTask`."""

    number: int


class Topic(Enum):
    """A topic that a request can wait for, besides a :class:`StoreKey` and the silence of a :class:`Presence`."""

    TIME = "time"  # when the next wait is over
    ROUND = "round"  # the result of a join
    ENDS = "ends"  # of processes
    OUTPUT = "output"
    NODES = "nodes"  # that have enrolled
    STACKS = "stacks"


@dataclass(frozen=True)
class StoreKey:
    """The value of this key."""

    key: str


@dataclass(frozen=True)
class JobEvent:
    """An event that a launcher has to act on.

    Attributes:
        exited: how a task's process has ended.
        dropped: a member that was removed from the job although its process may live, and why.
        silent: a task that sends no heartbeat, and for how many seconds it has given none; again each time that
            the limit has passed once more.
        trained: whether rank 0's process has ended.
        stalled: ranks for which others have waited for too long; once for each such wait.
        dump: the number of a dump, and the tasks whose agents have to send their stacks.
    """

    exited: ExitRecord | None = None
    dropped: tuple[TaskKey, str] | None = None
    silent: tuple[TaskKey, float] | None = None
    trained: bool = False
    stalled: Stall | None = None
    dump: tuple[int, tuple[TaskKey, ...]] | None = None


class Effects(NamedTuple):
    """The effects of an event.

    Attributes:
        reply: the answer, if it was a request.
        changed: the topics that have changed: requests that wait for them are checked again.
        news: what the launcher has to act on, in order.
    """

    reply: Any
    changed: tuple[Hashable, ...]
    news: tuple[JobEvent, ...]
