"""A world of several ranks in one process: every other rank is imagined to hold the same data as this one.

Replaces the native ops by TensorFlow ops that do the arithmetic and note down what ran, in the order in which it ran.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow as tf

from tfcollective import _runtime as runtime
from tfcollective._base.settings import Settings
from tfcollective._base.topology import Placement
from tfcollective._control.identity import discover
from tfcollective._runtime.communicator import NativeCommunicator, Op
from tfcollective._runtime.engine import JoinResult
from tfcollective._runtime.native import NativeEngine
from tfcollective._runtime.session import Session
from tfcollective.tensorflow import _names as names
from tfcollective.tensorflow import _ops as ops


class FakeOps:
    """What ``tf.load_op_library`` would return. `ran` lists what has run, as text.

    Attributes:
        rows_of_others: what the other ranks give to a gathering; as this one if None.
        drifts_of_others: how far their replicas are off, as (distance, bound) of each variable that differs.
        weights_of_first: rank 0's weights; this rank's if None.
    """

    def __init__(self, size: int, rank: int = 0) -> None:
        self.size = size
        self.rank = rank
        self.drifts_of_others: Any = (0.0, 0.0)
        self.weights_of_first: Any = None
        self.ran: list[str] = []
        self.signatures: dict[str, str] = {}
        self.rows_of_others: Any = None
        self._held: dict[int, tuple[Any, list[Any], dict[str, Any]]] = {}

    def count(self, prefix: str) -> int:
        return sum(entry.startswith(prefix) for entry in self.ran)

    def _note(self, text: str, *inputs: Any) -> Any:
        def write(*_inputs: Any) -> Any:
            self.ran.append(text.partition("\t")[0])  # without a label
            return np.int64(0)

        noted = tf.numpy_function(write, list(inputs), tf.int64, stateful=True)
        noted.set_shape([])
        return noted

    def _combine(self, tensor: Any, op: int, prescale: str = "1.0", postscale: str = "1.0") -> Any:
        if op in (Op.MIN, Op.MAX, Op.AVERAGE):
            factor = 1.0
        else:
            assert op == Op.SUM
            factor = float(self.size)
        return tf.cast(tf.cast(tensor, tf.float64) * (factor * float(prescale) * float(postscale)), tensor.dtype)

    def tfcollective_allreduce(
        self, tensor: Any, op: int, prescale: str, postscale: str, tensor_name: str, process_set_id: int = 0
    ) -> Any:
        if tensor_name.endswith("/replica_check"):
            return self._compared(tensor, tensor_name, self.rows_of_others)
        if tensor_name.endswith("/replica_check/drift"):
            theirs = tf.broadcast_to(tf.constant(self.drifts_of_others, tensor.dtype), tensor[:1].shape)
            return self._compared(tensor, tensor_name, theirs)
        with tf.control_dependencies([self._note(f"allreduce {tensor_name}", tensor)]):
            return self._combine(tensor, op, prescale, postscale)

    def _compared(self, places: Any, tensor_name: str, theirs: Any) -> Any:
        """Every rank has filled in its own place."""
        with tf.control_dependencies([self._note(f"compare {tensor_name}", places)]):
            mine = places[self.rank : self.rank + 1]
            others = mine if theirs is None else theirs
            return tf.concat([mine if rank == self.rank else others for rank in range(self.size)], 0)

    def tfcollective_grouped_allreduce(
        self, tensors: Sequence[Any], op: int, prescale: str, postscale: str, tensor_name: str, process_set_id: int = 0
    ) -> list[Any]:
        with tf.control_dependencies([self._note(f"grouped_allreduce {tensor_name}", *tensors)]):
            if "/replica_check/weights/" in tensor_name:
                given = tensors if self.weights_of_first is None else self.weights_of_first
                return [tf.constant(value, tensor.dtype) for value, tensor in zip(given, tensors, strict=True)]
            return [self._combine(tensor, op, prescale, postscale) for tensor in tensors]

    def tfcollective_allgather(self, tensor: Any, tensor_name: str, process_set_id: int = 0) -> Any:
        with tf.control_dependencies([self._note(f"allgather {tensor_name}", tensor)]):
            parts = [tensor] * self.size if self.rows_of_others is None else [tensor, self.rows_of_others]
            return tf.concat(parts, 0)

    def tfcollective_broadcast(self, tensor: Any, root_rank: int, tensor_name: str, process_set_id: int = 0) -> Any:
        with tf.control_dependencies([self._note(f"broadcast {tensor_name}", tensor)]):
            return tf.identity(tensor)

    def tfcollective_barrier(self, tensor_name: str, **_attributes: Any) -> Any:
        noted = self._note(f"barrier {tensor_name}")
        return None if tf.executing_eagerly() else noted.op

    def tfcollective_bucket_start(self, tensors: Sequence[Any], **attributes: Any) -> Any:
        self.signatures[attributes["plan"]] = attributes["signature"]
        handle = self._note(f"start {attributes['plan']} {attributes['bucket']}", *tensors)
        self._held[id(handle)] = (handle, list(tensors), attributes)
        return handle

    def tfcollective_bucket_done(self, handle: Any, T: Any, N: int) -> list[Any]:
        _, tensors, attributes = self._held[id(handle)]
        assert len(tensors) == N
        assert tensors[0].dtype == T
        with tf.control_dependencies([self._note(f"done {attributes['plan']} {attributes['bucket']}", handle)]):
            return [
                self._combine(tensor, attributes["op"], attributes["prescale"], attributes["postscale"])
                for tensor in tensors
            ]


class FakeCommunicator:
    """The world's, whose other ranks hold the same arrays as this one; what else it is asked a world of one answers."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __getattr__(self, name: str) -> Any:
        return getattr(self._alone, name)

    @functools.cached_property
    def _alone(self) -> NativeCommunicator:
        return NativeCommunicator.alone()

    def allgather(self, array: Any, **_options: Any) -> Any:
        return np.concatenate([array] * self.size)

    def broadcast(self, array: Any, root: int = 0, **_options: Any) -> Any:
        return np.array(array)


class FakeExchange:
    """Of bytes: the other ranks have sent the same, and no key is needed to believe it."""

    def __init__(self, size: int) -> None:
        self.size = size

    def broadcast(self, _world: Any, _members: Any, data: bytes, _root: int, _name: str) -> bytes:
        return data

    def allgather(self, _world: Any, _members: Any, data: bytes, _name: str) -> list[bytes]:
        return [data] * self.size


@contextlib.contextmanager
def fake_world(
    size: int = 2, rank: int = 0, wrapped: Callable[[FakeOps], Any] = lambda fake: fake, **settings: Any
) -> Iterator[FakeOps]:
    """Makes this process rank `rank` of `size`.

    Args:
        wrapped: what stands for the ops, given those that note down what runs.
        settings: replace fields of Settings.
    """
    loaded = replace(Settings(), **{"bucket_bytes": 8 << 20, **settings})  # there is no link to suit
    place = Placement(rank=rank, size=size, local_rank=rank, local_size=size, cross_rank=0, cross_size=1)
    fake = FakeOps(size, rank)
    before = (runtime._session, ops._module)
    names._plan_names.clear()
    identity = discover(Settings(), {})
    others = FakeCommunicator(size) if size > 1 else None
    runtime._session = Session(NativeEngine(loaded, identity), JoinResult(loaded, identity, place, others))
    runtime._session.sealed = FakeExchange(size)
    ops._module = wrapped(fake)
    try:
        yield fake
    finally:
        runtime._session, ops._module = before
