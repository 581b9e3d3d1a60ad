"""The collectives with the arguments that Horovod gives them in its Keras modules: other places than on tensors."""

from __future__ import annotations

from typing import Any

from tfcollective._runtime import ProcessSet
from tfcollective._runtime.communicator import Average, Op
from tfcollective.tensorflow import _functions as functions
from tfcollective.tensorflow import _rows as rows
from tfcollective.tensorflow._compression import Compression
from tfcollective.tensorflow._docstrings import documented


@documented
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
    """See ``tfcollective.tensorflow.allreduce``.

    Args:
        value: a tensor, or what TensorFlow makes one of: an array, a list, a number.
    """
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


@documented
def allgather(value: Any, name: str | None = None, process_set: ProcessSet | None = None) -> Any:
    """See ``tfcollective.tensorflow.allgather``.

    Args:
        value: a tensor, or what TensorFlow makes one of: an array, a list, a number.
    """
    return rows.allgather(value, name, process_set=process_set)


@documented
def broadcast(value: Any, root_rank: int, name: str | None = None, process_set: ProcessSet | None = None) -> Any:
    """See ``tfcollective.tensorflow.broadcast``.

    Args:
        value: a tensor, or what TensorFlow makes one of: an array, a list, a number.
    """
    return functions.broadcast(value, root_rank, name, process_set=process_set)


@documented
def reducescatter(value: Any, name: str | None = None, op: Op = Average, process_set: ProcessSet | None = None) -> Any:
    """See ``tfcollective.tensorflow.reducescatter``.

    Args:
        value: a tensor, or what TensorFlow makes one of: an array, a list, a number.
    """
    return rows.reducescatter(value, op=op, name=name, process_set=process_set)
