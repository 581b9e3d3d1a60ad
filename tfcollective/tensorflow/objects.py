"""Python objects between ranks: pickled, over the authenticated communicator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tfcollective import payload, runtime
from tfcollective.tensorflow.functions import refuse

__all__ = ["allgather_object", "broadcast_object", "broadcast_object_fn"]


def broadcast_object(
    obj: Any, root_rank: int = 0, session: None = None, name: str | None = None, process_set: None = None
) -> Any:
    """The object of rank `root_rank`.

    Args:
        obj: anything that cloudpickle takes; only the root's counts.
        root_rank: whose.
        session: Horovod's; not needed.
        name: shown in messages.
        process_set: not supported.

    Raises:
        InvalidArgumentError: the object cannot be pickled.
    """
    import numpy as np

    refuse(process_set=process_set)
    del session
    if runtime.size() == 1:
        return obj
    world = runtime.get_communicator()
    name = name or "broadcast_object"
    data = payload.dumps(obj, name) if runtime.rank() == root_rank else b""
    length = world.broadcast(np.array(len(data), np.int64), root_rank, name=f"{name}/size")
    buffer = np.frombuffer(data, np.uint8) if data else np.empty(int(length), np.uint8)
    received = world.broadcast(buffer, root_rank, name=name)
    return obj if runtime.rank() == root_rank else payload.loads(received.tobytes())


def broadcast_object_fn(
    root_rank: int = 0, session: None = None, name: str | None = None, process_set: None = None
) -> Callable[[Any], Any]:
    """A function of one argument that does :func:`broadcast_object` with these arguments."""

    def broadcast(obj: Any) -> Any:
        return broadcast_object(obj, root_rank, session, name, process_set)

    return broadcast


def allgather_object(obj: Any, session: None = None, name: str | None = None, process_set: None = None) -> list[Any]:
    """The objects of all ranks, in rank order; see :func:`broadcast_object`."""
    import numpy as np

    refuse(process_set=process_set)
    del session
    if runtime.size() == 1:
        return [obj]
    world = runtime.get_communicator()
    name = name or "allgather_object"
    data = np.frombuffer(payload.dumps(obj, name), np.uint8)
    lengths = world.allgather(np.array([data.size], np.int64), name=f"{name}/size")
    gathered = world.allgather(data, name=name)
    ends = np.cumsum(lengths)
    return [payload.loads(gathered[end - length : end].tobytes()) for end, length in zip(ends, lengths, strict=True)]
