"""Python objects between ranks: pickled, over the authenticated communicator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tfcollective import payload, runtime
from tfcollective.runtime import ProcessSet
from tfcollective.tensorflow.border import collective_of_objects


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
    """
    import numpy as np

    del session
    members = runtime.members(process_set)
    root = members.place_of(root_rank, "root_rank")
    if members.size == 1:
        return obj
    world = runtime.get_communicator(process_set)
    name = name or "broadcast_object"
    data = payload.dumps(obj, name) if members.rank == root else b""
    length = world.broadcast(np.array(len(data), np.int64), root, name=f"{name}/size")
    buffer = np.frombuffer(data, np.uint8) if data else np.empty(int(length), np.uint8)
    received = world.broadcast(buffer, root, name=name)
    return obj if members.rank == root else payload.loads(received.tobytes())


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
    import numpy as np

    del session
    if runtime.members(process_set).size == 1:
        return [obj]
    world = runtime.get_communicator(process_set)
    name = name or "allgather_object"
    data = np.frombuffer(payload.dumps(obj, name), np.uint8)
    lengths = world.allgather(np.array([data.size], np.int64), name=f"{name}/size")
    gathered = world.allgather(data, name=name)
    ends = np.cumsum(lengths)
    return [payload.loads(gathered[end - length : end].tobytes()) for end, length in zip(ends, lengths, strict=True)]
