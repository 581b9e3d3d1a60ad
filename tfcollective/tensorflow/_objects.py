"""Python objects between ranks: pickled, each proved with the job key before it is unpickled."""

from __future__ import annotations

from typing import Any

from tfcollective import _runtime as runtime
from tfcollective._base import payload
from tfcollective._runtime import ProcessSet
from tfcollective.tensorflow._border import collective_of_objects


@collective_of_objects
def broadcast_object(
    obj: Any, *, root_rank: int = 0, name: str | None = None, process_set: ProcessSet | None = None
) -> Any:
    """The object of rank `root_rank`.

    Args:
        obj: anything that cloudpickle takes; only the root's counts.
        root_rank: whose; a rank of the world, also with a process set.
        name: shown in messages.
        process_set: whose ranks take part; all if None.

    Raises:
        InvalidArgumentError: the object cannot be pickled.
        ProtocolError: what came is not what rank `root_rank` has sent.
    """
    members = runtime.members(process_set)
    root = members.place_of(root_rank, "root_rank")
    if members.size == 1:
        return obj
    name = name or "broadcast_object"
    mine = members.rank == root
    data = runtime.broadcast_bytes(payload.dumps(obj, name) if mine else b"", root, name, process_set)
    return obj if mine else payload.loads(data)


@collective_of_objects
def allgather_object(obj: Any, *, name: str | None = None, process_set: ProcessSet | None = None) -> list[Any]:
    """The objects of all ranks, in rank order; see :func:`broadcast_object`.

    Args:
        obj: this rank's; anything that pickle can write.
    """
    if runtime.members(process_set).size == 1:
        return [obj]
    name = name or "allgather_object"
    everyones = runtime.allgather_bytes(payload.dumps(obj, name), name, process_set)
    return [payload.loads(data) for data in everyones]
