"""The collectives with the arguments that Horovod gives them in its Keras modules: other places than on tensors."""

from __future__ import annotations

from typing import Any

from tfcollective.communicator import Average, Op
from tfcollective.runtime import ProcessSet
from tfcollective.tensorflow import functions, rows
from tfcollective.tensorflow.compression import Compression


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: Op | None = None,
    compression: Any = Compression.none,
    process_set: ProcessSet | None = None,
) -> Any:
    """See ``tfcollective.tensorflow.allreduce``; `value` is what makes a tensor."""
    return functions.allreduce(
        value,
        average,
        compression=compression,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        name=name,
        process_set=process_set,
    )


def allgather(value: Any, name: str | None = None, process_set: ProcessSet | None = None) -> Any:
    """See ``tfcollective.tensorflow.allgather``; `value` is what makes a tensor."""
    return rows.allgather(value, name, process_set=process_set)


def broadcast(value: Any, root_rank: int, name: str | None = None, process_set: ProcessSet | None = None) -> Any:
    """See ``tfcollective.tensorflow.broadcast``; `value` is what makes a tensor."""
    return functions.broadcast(value, root_rank, name, process_set=process_set)


def reducescatter(value: Any, name: str | None = None, op: Op = Average, process_set: ProcessSet | None = None) -> Any:
    """See ``tfcollective.tensorflow.reducescatter``; `value` is what makes a tensor."""
    return rows.reducescatter(value, op=op, name=name, process_set=process_set)
