"""The engine: how a process joins its world and how process sets form there."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from tfcollective._base.errors import InternalError
from tfcollective._base.settings import Settings
from tfcollective._base.tasks import TaskKey
from tfcollective._base.topology import Placement, World
from tfcollective._control.identity import Identity
from tfcollective._control.identity.node import ancestors
from tfcollective._runtime.communicator import Communicator
from tfcollective._runtime.members import Members

if TYPE_CHECKING:
    from tfcollective._control.client.client import CoordinatorClient

#: The ops by which TensorFlow reaches a communicator: the op library, Horovod's own, or Python functions over it.
TensorFlowOps = Literal["library", "horovod", "python"]


@dataclass(frozen=True)
class JoinResult:
    """The result of joining a world: this process's place in it.

    Attributes:
        settings: what ``init()`` has read, with the interface that was chosen for the peers.
        identity: who this process is.
        placement: None for an auxiliary task, which is outside the world.
        communicator: None in a world of one rank until it is needed, and for an auxiliary task.
        client: of the coordinator; None without one.
        homogeneous: True if every node has the same number of ranks.
        generation: of the world; 0 without a coordinator.
        tasks: of its ranks, in rank order; empty where they are not known.
        formed: when this process learned of the world, on its monotonic clock; 0 where no coordinator forms it.
    """

    settings: Settings
    identity: Identity
    placement: Placement | None
    communicator: Communicator | None = None
    client: CoordinatorClient | None = None
    homogeneous: bool = True
    generation: int = 0
    tasks: tuple[TaskKey, ...] = ()
    formed: float = 0.0


class Subset(Protocol):
    """A process set that is being formed. Every rank of the world has one, member or not."""

    @property
    def address(self) -> str:
        """The address at which the other members reach this one."""

    def connect(self, addresses: Sequence[str]) -> Communicator | None:
        """Connects the members; all ranks of the world call it with the members' addresses. Returns the members'
        communicator.
        """

    def close(self) -> None:
        """Gives back what :meth:`connect` has not taken over."""


class Engine(Protocol):
    """Moves the data between the ranks."""

    @property
    def tensorflow_ops(self) -> TensorFlowOps:
        """The ops by which TensorFlow reaches this engine's communicators."""

    def join(self) -> JoinResult:
        """Joins the world and connects to its ranks.

        Raises:
            RendezvousError: the ranks did not come together in time; names the missing tasks.
            ConfigError: the engine is not installed, or a job key is needed and there is none.
            CoordinatorError: the coordinator was lost, or does not hold the job key.
        """

    def rejoin(self, lost: int | None) -> JoinResult:
        """Joins the next world with the same process, after its communicator of the last one was closed.

        Args:
            lost: the rank of the last world whose connection has ended, if one has.

        Raises:
            PeerLostError: a rank of the new world has ended before all were connected: there will be another one.
            RendezvousError: there is no next world; says why.
            UnsupportedError: the job is not elastic.
        """

    def subset(self, members: Members) -> Subset:
        """Begins to form a process set; see :class:`Subset`."""

    def dismiss(self, members: Members) -> None:
        """Forgets a process set that has been removed; all ranks of the world call it."""


# ---- joining by the coordinator -------------------------------------------------------------------------------------


def connect(identity: Identity) -> CoordinatorClient:
    """A client of the coordinator that the identity names."""
    if identity.coordinator is None or identity.key is None:
        raise InternalError("a world of several ranks, or of a launcher, has a coordinator and a key")
    from tfcollective._control.client.client import CoordinatorClient

    return CoordinatorClient(identity.coordinator, identity.key, identity.job_id)


def register(
    client: CoordinatorClient,
    settings: Settings,
    identity: Identity,
    address: str = "",
    lost: int | None = None,
    *,
    first: bool = False,
) -> World:
    """Waits at the coordinator until all ranks have registered; the world as it sees it.

    Args:
        address: where peers reach this rank; "" if they need not.
        lost: see :meth:`Engine.rejoin`.
        first: see :meth:`Channel.join`.
    """
    from tfcollective._control.client.channel import Channel, Retry
    from tfcollective._control.client.client import CoordinatorUnreachableError

    # Asked again with the same address, the coordinator gives the same answer.
    return Channel(client, Retry(errors=(CoordinatorUnreachableError,))).join(
        identity.task,
        size=identity.world_size,
        node=identity.node_id,
        pid=os.getpid(),
        address=address,
        # How long an elastic job waits for what it lacks, the coordinator alone knows.
        timeout=math.inf if settings.elastic else settings.start_timeout,
        lost=lost,
        first=first,
        ancestors=tuple(one.pid for one in ancestors()),
    )


class _Closable(Protocol):
    def close(self) -> None: ...


@contextmanager
def closed_on_error(opened: _Closable | None) -> Iterator[None]:
    """Closes what was opened if the block fails."""
    try:
        yield
    except BaseException:
        if opened is not None:
            opened.close()
        raise
