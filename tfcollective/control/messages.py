"""What clients ask of a coordinator and what it answers: values, one class for each request.

The annotations are the format: :mod:`tfcollective.codec` refuses a body that is anything else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tfcollective.codec import NotNegative
from tfcollective.control.output_log import OutputPiece
from tfcollective.control.state import JoinRequest
from tfcollective.control.store import Entry
from tfcollective.failures import ExitRecord
from tfcollective.tasks import TaskKey
from tfcollective.topology import World

__all__ = [
    "Alive",
    "Beat",
    "Enroll",
    "Enrolled",
    "Exited",
    "FindLost",
    "Found",
    "Get",
    "Join",
    "Joined",
    "Leave",
    "Lost",
    "Nothing",
    "Presence",
    "Put",
    "ReadClock",
    "ReadOutput",
    "Refused",
    "Remove",
    "Show",
    "Started",
    "Status",
    "Stored",
    "Time",
    "path_of",
]


@dataclass(frozen=True)
class Nothing:
    """The answer to a request that has none."""


@dataclass(frozen=True)
class Refused:
    """The answer to a request that is refused: why."""

    error: str = "no reason given"


@dataclass(frozen=True)
class Join:
    """A task wants to be in the world; answered when the round is over, or after ``timeout`` seconds."""

    request: JoinRequest
    timeout: NotNegative


@dataclass(frozen=True)
class Joined:
    """The world, or why there is none, or else who is still missing."""

    world: World | None = None
    failure: str | None = None
    missing: tuple[str, ...] = ()


@dataclass(frozen=True)
class Beat:
    """A task lives: what it does (a word) and what it counts."""

    task: TaskKey
    activity: str
    info: Mapping[str, object]


@dataclass(frozen=True)
class Alive:
    """A process of this name, which is no task, lives: a node or a submitter."""

    name: str


@dataclass(frozen=True)
class Leave:
    """A task leaves the world in order."""

    task: TaskKey


@dataclass(frozen=True)
class FindLost:
    """Which member of the world of this generation has ended? Answered within ``timeout`` seconds."""

    generation: int
    timeout: NotNegative


@dataclass(frozen=True)
class Lost:
    """Its rank and what happened; no rank when none has."""

    rank: int | None = None
    message: str = ""


@dataclass(frozen=True)
class Started:
    """An agent has started a task's process."""

    task: TaskKey
    node: str
    pid: int


@dataclass(frozen=True)
class Exited:
    """An agent has seen how a task's process has ended."""

    record: ExitRecord


@dataclass(frozen=True)
class Status:
    """How does the job stand? The answer is a JSON object, for people and programs."""


@dataclass(frozen=True)
class ReadClock:
    """What time is it?"""


@dataclass(frozen=True)
class Time:
    """The coordinator's monotonic clock, in nanoseconds."""

    monotonic_ns: int


@dataclass(frozen=True)
class Enroll:
    """A node is ready for its part of the job. ``token`` is random: repeating the request changes nothing."""

    token: str
    facts: Mapping[str, object]


@dataclass(frozen=True)
class Enrolled:
    """The order of enrolment, from 0 on."""

    number: int


@dataclass(frozen=True)
class Put:
    """Sets the value of a key."""

    key: str
    value: object


@dataclass(frozen=True)
class Stored:
    """The version that it has now."""

    version: int


@dataclass(frozen=True)
class Presence:
    """What a wait depends on: the process of this name gives signs of life (:class:`Alive`) within ``limit`` seconds,
    the first of them within ``first`` seconds of the first wait for it."""

    name: str
    limit: NotNegative
    first: NotNegative


@dataclass(frozen=True)
class Get:
    """The value of a key once its version is above ``version``, or after ``timeout`` seconds, or as soon as the one
    that is to put it there is silent."""

    key: str
    version: int = 0
    timeout: NotNegative = 0.0
    presence: Presence | None = None


@dataclass(frozen=True)
class Found:
    """The value, if there is one, and whether the one that is to put it there is silent."""

    entry: Entry | None = None
    silent: bool = False


@dataclass(frozen=True)
class Remove:
    """Forgets the bytes under a name."""

    name: str


@dataclass(frozen=True)
class Show:
    """Output of a node, for those who read along."""

    piece: OutputPiece


@dataclass(frozen=True)
class ReadOutput:
    """The output since a position; answered when there is some, or after ``timeout`` seconds.

    The answer is an :class:`~tfcollective.control.output_log.OutputPage`.
    """

    position: int
    timeout: NotNegative


def path_of(kind: type) -> str:
    """Where requests of this class go."""
    return f"/v1/{kind.__name__.lower()}"
