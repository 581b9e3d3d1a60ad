"""The functions of Horovod's module of this name."""

from tfcollective.horovod.tensorflow import (
    allgather_object,
    broadcast_,
    broadcast_object,
    broadcast_object_fn,
    broadcast_variables,
)

__all__ = ["allgather_object", "broadcast_", "broadcast_object", "broadcast_object_fn", "broadcast_variables"]
