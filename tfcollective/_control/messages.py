"""The requests of clients to a coordinator, and its answers: values, one class for each request.

The annotations are the format: :mod:`tfcollective._base.codec` refuses a body that is anything else.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar, get_args

from tfcollective._base.codec import NotNegative, decode, encode
from tfcollective._base.errors import ConfigError
from tfcollective._base.failures import ExitRecord
from tfcollective._base.stacks import TaskStacks
from tfcollective._base.tasks import TaskKey
from tfcollective._base.topology import World
from tfcollective._control.snapshot import JobSnapshot

R = TypeVar("R")


class Refusal(Exception):  # noqa: N818  an answer, not a fault of this process
    """A request that contradicts the state; the text says how."""


@dataclass(frozen=True)
class Nothing:
    """The answer to a request that has none."""


@dataclass(frozen=True)
class Refused:
    """The answer to a request that is refused: why."""

    error: str = "no reason given"


class Request(Generic[R]):
    """A request of a client; ``R`` is the class of the answer. Each request has its own class.

    A subclass is a frozen dataclass. Its name is the path, its fields are the body. The coordinator keeps one with a
    ``timeout`` for so many seconds until it has an answer.
    """

    path: ClassVar[str]
    answer: ClassVar[Any]  # R, or an alias such as Mapping[str, object]

    def __init_subclass__(cls) -> None:
        (cls.answer,) = get_args(vars(cls)["__orig_bases__"][0])
        cls.path = f"/v1/{cls.__name__.lower()}"


# ---- a task and its world --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class JoinRequest:
    """A task that wants to be in the world. ``address`` is opaque; ``size`` is that of the world that it expects;
    ``ancestors`` are the processes of its host by which it has been started."""

    task: TaskKey
    size: int
    node: str
    pid: int
    address: str
    ancestors: tuple[int, ...] = field(default=(), compare=False)


@dataclass(frozen=True)
class Joined:
    """The world (:func:`pack_world`), or why there is none.

    ``missing`` names the tasks that have not joined: in a failure, if the request did not wait, and for the one rank
    that logs them; answers to all ranks would carry n times up to n names. ``begun``: the task has come too late to the
    first world. ``over``: training is complete, there is no next world. ``leave``: why the task has to leave.
    """

    world: bytes | None = None
    failure: str | None = None
    missing: tuple[str, ...] = ()
    begun: bool = False
    over: bool = False
    leave: str | None = None


@dataclass(frozen=True)
class Join(Request[Joined]):
    """A task joins the next world. Answered when the round is over, or after ``timeout`` seconds. ``lost`` is the rank
    of its last world whose connection it has seen end, if it has; ``first``: it wants the first world and no later
    one."""

    request: JoinRequest
    timeout: NotNegative
    lost: int | None = None
    first: bool = False


def pack_world(world: World) -> bytes:
    """A world as it travels, compressed: each of n ranks gets all n members."""
    return zlib.compress(encode(world))


def unpack_world(data: bytes) -> World:
    """Reverses :func:`pack_world`; raises ConfigError if ``data`` is anything else."""
    return decode(_inflated(data, "the world"), World, "the world")


def _inflated(data: bytes, what: str) -> bytes:
    try:
        return zlib.decompress(data)
    except zlib.error as error:
        raise ConfigError(f"{what} cannot be read: {error}") from error


@dataclass(frozen=True)
class Beat(Request[Nothing]):
    """A heartbeat of a task: its activity (a word), its counts, and the time at which it was ``said``, on the monotonic
    clock of its host: a heartbeat may come by two ways."""

    task: TaskKey
    activity: str
    info: Mapping[str, object]
    said: float = 0.0


@dataclass(frozen=True)
class Leave(Request[Nothing]):
    """A task leaves the world gracefully; ``for_good``: the others train on and do not wait for it. ``why`` is for
    people. ``ends``: its process ends, and its agent will report how."""

    task: TaskKey
    for_good: bool = False
    why: str = ""
    ends: bool = False


@dataclass(frozen=True)
class NodeLeaves(Request[Nothing]):
    """The node of these tasks of an elastic job is preempted, ``why`` says how: they have to leave gracefully.
    ``change``: the number of the launcher's decision, if it is one that concerns others, too; else 0."""

    tasks: tuple[TaskKey, ...]
    why: str
    change: int = 0


@dataclass(frozen=True)
class Done(Request[Nothing]):
    """A task of an elastic job has completed the training, or, ``again``, begins another one."""

    task: TaskKey
    again: bool = False


@dataclass(frozen=True)
class Failing(Request[Nothing]):
    """A task ends by an error of the program, as ``cause`` says; its process may take its time."""

    task: TaskKey
    cause: str


@dataclass(frozen=True)
class Lost:
    """The rank that was lost and what happened to it; no rank if none was lost."""

    rank: int | None = None
    message: str = ""


@dataclass(frozen=True)
class FindLost(Request[Lost]):
    """Asks which member of the world of this generation has ended. Answered within ``timeout`` seconds."""

    generation: int
    timeout: NotNegative


@dataclass(frozen=True)
class Members:
    """The number of ranks; 0 before the first world."""

    size: int


@dataclass(frozen=True)
class CountMembers(Request[Members]):
    """Asks for the number of ranks in the world."""


@dataclass(frozen=True)
class Started(Request[Nothing]):
    """An agent has started a task's process; ``host`` is for people."""

    task: TaskKey
    node: str
    pid: int
    host: str = ""


@dataclass(frozen=True)
class Exited(Request[Nothing]):
    """An agent has seen how a task's process has ended."""

    record: ExitRecord


# ---- the job ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Status(Request[JobSnapshot]):
    """Asks for the job as it stands, without the last output of tasks that have ended."""


@dataclass(frozen=True)
class Time:
    """The coordinator's monotonic clock, in nanoseconds."""

    monotonic_ns: int


@dataclass(frozen=True)
class ReadClock(Request[Time]):
    """Asks for the time."""


@dataclass(frozen=True)
class Alive(Request[Nothing]):
    """A heartbeat of a process that is not a task, a node or a submitter; with those that tasks have left with a node's
    agent since its last one."""

    name: str
    beats: tuple[Beat, ...] = ()


# ---- stacks ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DumpedTask:
    """A task whose process runs, and its stacks if its agent has sent them in time.

    ``in_collective``: an operation of it has begun and not ended, as its newest heartbeat says; ``completed``: how many
    have ended.
    """

    task: TaskKey
    rank: int | None
    host: str = ""
    in_collective: bool = False
    completed: int = 0
    stacks: TaskStacks | None = None


@dataclass(frozen=True)
class Dumped:
    """The tasks whose processes run (:func:`pack_dump`)."""

    tasks: bytes


@dataclass(frozen=True)
class Dump(Request[Dumped]):
    """Asks for the stacks of these tasks, or of all; answered when all have come, or after ``timeout`` seconds."""

    timeout: NotNegative
    tasks: tuple[TaskKey, ...] = ()


@dataclass(frozen=True)
class ReportStacks(Request[Nothing]):
    """An agent sends the stacks of one task for the dump with this number."""

    number: int
    stacks: TaskStacks


@dataclass(frozen=True)
class _Tasks:
    tasks: tuple[DumpedTask, ...]


def pack_dump(tasks: tuple[DumpedTask, ...]) -> bytes:
    """A dump as it travels, compressed: many ranks have the same stacks."""
    return zlib.compress(encode(_Tasks(tasks)))


def unpack_dump(data: bytes) -> tuple[DumpedTask, ...]:
    """Reverses :func:`pack_dump`; raises ConfigError if ``data`` is anything else."""
    return decode(_inflated(data, "the dump"), _Tasks, "the dump").tasks


# ---- nodes -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EnrolledNode:
    """A node's number, in the order of enrolment from 0 on, and what it has said of itself."""

    number: int
    facts: Mapping[str, object]


@dataclass(frozen=True)
class Enrolled:
    """The order of enrolment, from 0 on."""

    number: int


@dataclass(frozen=True)
class Enroll(Request[Enrolled]):
    """A node is ready for its part of the job. ``token`` is random: repeating the request changes nothing."""

    token: str
    facts: Mapping[str, object]


@dataclass(frozen=True)
class NodeList:
    """A page of the nodes, in their order, and how many have enrolled so far. An answer has a limit: there may be more,
    from ``then`` on. Of nodes that have ended only the newest ones are listed."""

    nodes: tuple[EnrolledNode, ...]
    count: int

    @property
    def then(self) -> int:
        """The number from which to ask for the nodes that are not in this list."""
        return self.nodes[-1].number + 1 if self.nodes else self.count


@dataclass(frozen=True)
class ListNodes(Request[NodeList]):
    """Asks which nodes have enrolled, from number ``since`` on; answered after ``timeout`` seconds at the latest."""

    since: int
    timeout: NotNegative


@dataclass(frozen=True)
class Gone:
    """The numbers of the nodes that have gone."""

    nodes: tuple[int, ...]


@dataclass(frozen=True)
class FindGone(Request[Gone]):
    """Asks which of these nodes have gone: their agents have reported their end, or sent no heartbeat (:class:`Alive`)
    for ``limit`` seconds. For an agent that has sent none at all, the time counts from the first such question."""

    nodes: tuple[int, ...]
    limit: NotNegative


# ---- values ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Entry:
    """A value and its version; versions of a key start at 1 and grow by 1."""

    value: object
    version: int


@dataclass(frozen=True)
class Stored:
    """The version that it has now."""

    version: int


@dataclass(frozen=True)
class Put(Request[Stored]):
    """Sets the value of a key."""

    key: str
    value: object


@dataclass(frozen=True)
class Presence:
    """The condition of a wait: the process ``name`` sends heartbeats (:class:`Alive`) at least every ``limit`` seconds,
    the first of them within ``first`` seconds of the first wait for it."""

    name: str
    limit: NotNegative
    first: NotNegative


@dataclass(frozen=True)
class Found:
    """The value, if there is one, and whether the process that should put it there is silent."""

    entry: Entry | None = None
    silent: bool = False


@dataclass(frozen=True)
class Get(Request[Found]):
    """Asks for the value of a key once its version is above ``version``, after ``timeout`` seconds at the latest, or as
    soon as the process that should put it there is silent."""

    key: str
    version: int = 0
    timeout: NotNegative = 0.0
    presence: Presence | None = None


@dataclass(frozen=True)
class Remove(Request[Nothing]):
    """Forgets the bytes under a name."""

    name: str


# ---- output ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OutputPiece:
    """Whole lines of one stream of one node; ``stream`` is ``stdout`` or ``stderr``."""

    node: str
    stream: str
    text: str


@dataclass(frozen=True)
class OutputPage:
    """The output since a position: its pieces, the next position, and how many pieces were lost before them."""

    pieces: tuple[OutputPiece, ...]
    position: int
    lost: int


@dataclass(frozen=True)
class Show(Request[Nothing]):
    """Output of a node, for launchers that show it."""

    piece: OutputPiece


@dataclass(frozen=True)
class ReadOutput(Request[OutputPage]):
    """The output since a position; answered when there is some, or after ``timeout`` seconds.

    The answer is an :class:`~tfcollective._control.messages.OutputPage`.
    """

    position: int
    timeout: NotNegative
