"""The functions of Horovod's module of this name."""

from tfcollective.tensorflow import (  # noqa: F401
    allgather_object,
    broadcast_,
    broadcast_object,
    broadcast_object_fn,
    broadcast_variables,
)
