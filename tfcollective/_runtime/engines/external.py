"""Horovod or MPI as the engine: they know rank, size and nodes themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tfcollective._base.errors import ConfigError, InternalError, UnsupportedError
from tfcollective._base.settings import Settings, environ_snapshot
from tfcollective._base.tasks import workers
from tfcollective._base.topology import Placement
from tfcollective._control.identity import Identity, discover
from tfcollective._runtime.communicator import Communicator
from tfcollective._runtime.engine import JoinResult, TensorFlowOps, closed_on_error, connect, register
from tfcollective._runtime.engines import ExternalCommunicator
from tfcollective._runtime.members import Members


class ExternalEngine:
    """See :class:`~tfcollective._runtime.engine.Engine`.

    Args:
        settings: what ``init()`` has read.
        open_world: takes a timeout (s); gives the communicator of the world that a launcher, this engine's own or
            tfcollective's, has prepared.
        tensorflow_ops: see :class:`Engine`.
    """

    def __init__(
        self, settings: Settings, open_world: Callable[[float], ExternalCommunicator], tensorflow_ops: TensorFlowOps
    ) -> None:
        self._settings = settings
        self._open_world = open_world
        self.tensorflow_ops = tensorflow_ops
        self._world: ExternalCommunicator | None = None

    def join(self) -> JoinResult:
        """Joins the world. Under tfcollective's launcher the rank first reports to the coordinator, which names missing
        ranks.
        """
        settings = self._settings
        launched = settings.coordinator is not None
        identity = discover(settings if launched else replace(settings, identity="single"), environ_snapshot())
        if launched and not identity.task.is_trainer:
            return JoinResult(settings, identity, None)
        client = connect(identity) if launched else None
        with closed_on_error(client):
            listed = None if client is None else register(client, settings, identity)
            self._world = world = self._open_world(settings.op_timeout)
            place = world.placement
            with closed_on_error(world):
                if listed is not None:
                    _check_place(place, listed.placement(identity.task), settings.engine)
                    return JoinResult(settings, identity, place, world, client, listed.homogeneous)
                sizes = world.allgather([place.local_size], name="ranks of each node")
                return JoinResult(
                    settings, _identity_at(place, identity), place, world, homogeneous=len(set(sizes.tolist())) == 1
                )

    def rejoin(self, lost: int | None) -> JoinResult:
        """See :class:`Engine`."""
        del lost
        raise UnsupportedError(f"the engine {self._settings.engine} cannot change the world of a running job")

    def subset(self, members: Members) -> ExternalSubset:
        """See :class:`Engine`."""
        return ExternalSubset(self._joined(), members)

    def dismiss(self, members: Members) -> None:
        """See :class:`Engine`."""
        self._joined().dismiss(members.ranks)

    def _joined(self) -> ExternalCommunicator:
        if self._world is None:
            raise InternalError("the engine has not joined its world")
        return self._world


class ExternalSubset:
    """See :class:`~tfcollective._runtime.engine.Subset`. The members find each other through their engine."""

    address = ""

    def __init__(self, world: ExternalCommunicator, members: Members) -> None:
        self._world = world
        self._members = members

    def connect(self, addresses: Sequence[str]) -> Communicator | None:
        """See :class:`Subset`."""
        del addresses
        self._world.announce(self._members.ranks)
        return self._world.subset(self._members.ranks) if self._members.included else None

    def close(self) -> None:
        """Does nothing: nothing is open."""


def _check_place(place: Placement, launched: Placement, engine: str) -> None:
    if (place.rank, place.size) != (launched.rank, launched.size):
        raise ConfigError(
            f"the engine {engine} says that this process is rank {place.rank} of {place.size}, the launcher that it is "
            f"rank {launched.rank} of {launched.size}: start the job with --engine {engine}"
        )


def _identity_at(place: Placement, alone: Identity) -> Identity:
    return replace(alone, task=workers(place.size)[place.rank], world_size=place.size)
