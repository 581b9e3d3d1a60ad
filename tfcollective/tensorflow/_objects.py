"""Python objects between ranks: pickled, each proved with the job key before it is unpickled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tfcollective import _runtime as runtime
from tfcollective._base import payload
from tfcollective._runtime import ProcessSet
from tfcollective.tensorflow._border import collective_of_objects


@collective_of_objects
def broadcast_object(
    obj: Any, root_rank: int = 0, session: None = None, name: str | None = None, process_set: ProcessSet | None = None
) -> Any:
    """The object of rank `root_rank`.

    Args:
        obj: anything that cloudpickle takes; only the root's counts.
        root_rank: whose; a rank of the world, also with a process set.
        session: Horovod's; not needed.
        name: shown in messages.
        process_set: whose ranks take part; all if None.

    Raises:
        InvalidArgumentError: the object cannot be pickled.
        ProtocolError: what came is not what rank `root_rank` has sent.
    """
    del session
    members = runtime.members(process_set)
    root = members.place_of(root_rank, "root_rank")
    if members.size == 1:
        return obj
    name = name or "broadcast_object"
    mine = members.rank == root
    data = runtime.broadcast_bytes(payload.dumps(obj, name) if mine else b"", root, name, process_set)
    return obj if mine else payload.loads(data)


def broadcast_object_fn(
    root_rank: int = 0, session: None = None, name: str | None = None, process_set: ProcessSet | None = None
) -> Callable[[Any], Any]:
    """A function of one argument that does :func:`broadcast_object` with these arguments."""

    def broadcast(obj: Any) -> Any:
        return broadcast_object(obj, root_rank, session, name, process_set)

    return broadcast


@collective_of_objects
def allgather_object(
    obj: Any, session: None = None, name: str | None = None, process_set: ProcessSet | None = None
) -> list[Any]:
    """The objects of all ranks, in rank order; see :func:`broadcast_object`.

    Args:
        obj: this rank's; anything that pickle can write.
        session: Horovod's; without effect.
    """
    del session
    if runtime.members(process_set).size == 1:
        return [obj]
    name = name or "allgather_object"
    everyones = runtime.allgather_bytes(payload.dumps(obj, name), name, process_set)
    return [payload.loads(data) for data in everyones]
