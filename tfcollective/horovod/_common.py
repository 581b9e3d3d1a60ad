"""Horovod's names with one signature in its modules for TensorFlow and for Keras."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tfcollective.tensorflow as tfc
from tfcollective._base.errors import UnsupportedError
from tfcollective._runtime import ProcessSet
from tfcollective.horovod._signatures import with_signature

__all__: tuple[str, ...] = (
    "allgather_object",
    "alltoall",
    "barrier",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "grouped_allgather",
    "grouped_allreduce",
    "init",
    "start_timeline",
)


def init(comm: None = None, process_sets: Sequence[ProcessSet] | str | None = None, engine: str | None = None) -> None:
    """See ``tfcollective.init``. Raises UnsupportedError if `comm` is given."""
    if comm is not None:
        raise UnsupportedError("init: comm is not supported; all processes form one world: use process_sets")
    tfc.init(process_sets=process_sets, engine=engine)


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """See ``tfcollective.start_timeline``. There are no cycles to mark."""
    del mark_cycles
    tfc.start_timeline(file_path)


grouped_allreduce = with_signature(
    tfc.grouped_allreduce,
    "tensors average device_dense device_sparse compression op prescale_factor postscale_factor process_set"
    " ignore_name_scope name",
)
grouped_allgather = with_signature(tfc.grouped_allgather, "tensors name ignore_name_scope process_set")
alltoall = with_signature(tfc.alltoall, "tensor splits name ignore_name_scope process_set")
barrier = with_signature(tfc.barrier, "name process_set")
broadcast_object = with_signature(tfc.broadcast_object, "obj root_rank session name process_set")
allgather_object = with_signature(tfc.allgather_object, "obj session name process_set")
broadcast_variables = with_signature(tfc.broadcast_variables, "variables root_rank process_set inplace")


def broadcast_object_fn(
    root_rank: int = 0, session: None = None, name: str | None = None, process_set: ProcessSet | None = None
) -> Callable[[Any], Any]:
    """Returns a function of one argument that does :func:`broadcast_object` with these arguments."""
    del session
    return lambda obj: tfc.broadcast_object(obj, root_rank=root_rank, name=name, process_set=process_set)
