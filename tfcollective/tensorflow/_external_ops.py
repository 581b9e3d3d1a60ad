"""Replacements for the ops of ``_tf_ops.so`` with external engines: functions of the same names and arguments.

On Horovod they are Horovod's own ops. On MPI they are Python functions over numpy arrays; as MPI matches operations by
their order, those of a graph run in the order in which they were made. ``process_set_id`` names the process set.
"""

from __future__ import annotations

import abc
import functools
import re
import weakref
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import tensorflow as tf

from tfcollective import _runtime as runtime
from tfcollective._base.errors import Code, CollectiveError, UnsupportedError
from tfcollective._runtime.communicator import Average, Op, Sum
from tfcollective._runtime.engines.numbers import wire_op, wire_type

#: The gradient of each kind of op, by the name of the native op: ``_registered_gradients`` fills it.
GRADIENTS: dict[str, Callable[..., Any]] = {}


@functools.cache
def horovod_ops() -> HorovodOps:
    """Horovod's own ops."""
    return HorovodOps()


@functools.cache
def python_ops() -> NumpyOps:
    """Python functions over the communicator."""
    return NumpyOps()


class WithoutPlans(abc.ABC):
    """Engines without bucket plans: each bucket is an operation with a name."""

    @abc.abstractmethod
    def tfcollective_grouped_allreduce(
        self, tensors: Sequence[Any], op: int, prescale: str, postscale: str, tensor_name: str, process_set_id: int = 0
    ) -> list[Any]:
        """Several tensors of one dtype, combined in one operation."""

    def tfcollective_bucket_start(self, tensors: Sequence[Any], plan: str, bucket: int, **attributes: Any) -> list[Any]:
        """Combines a bucket; gives the results."""
        return self.tfcollective_grouped_allreduce(
            tensors,
            attributes["op"],
            attributes["prescale"],
            attributes["postscale"],
            f"{plan}/{bucket}",
            attributes["process_set_id"],
        )

    def tfcollective_bucket_done(self, started: list[Any], T: Any, N: int) -> list[Any]:  # noqa: N803
        """The results."""
        return started


def with_gradient(
    kind: str, forward: Callable[..., list[Any]], inputs: Sequence[Any], attributes: dict[str, Any]
) -> list[Any]:
    """The results of `forward`, with the gradient that is registered for the native op of this kind.

    Args:
        forward: is given the inputs, and gives a list of tensors.
        attributes: of the native op.
    """

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def differentiable(*tensors: Any) -> Any:
        outputs = forward(*tensors)

        def gradient(*grads: Any) -> Any:
            op = SimpleNamespace(inputs=tensors, outputs=outputs, get_attr=lambda name: _attribute(attributes, name))
            return GRADIENTS[kind](op, *grads)

        return tuple(outputs), gradient

    return list(differentiable(*inputs))


def _without_label(tensor_name: str) -> str:
    """External engines match all of a name, and the label may differ from rank to rank."""
    return tensor_name.partition("\t")[0]


# ---- numpy -----------------------------------------------------------------------------------------------------------


class NumpyOps(WithoutPlans):
    """Ops that call the communicator of their process set.

    In a graph an error is ``tf.errors.UnknownError``, whose text says what it is.
    """

    def __init__(self) -> None:
        self._last: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

    def tfcollective_allreduce(
        self, tensor: Any, op: int, prescale: str, postscale: str, tensor_name: str, process_set_id: int = 0
    ) -> Any:
        """See ``native/tf_ops/op_definitions.cc``; so the others."""
        return self._combine("Allreduce", tensor, op, prescale, postscale, tensor_name, process_set_id)

    def tfcollective_grouped_allreduce(
        self, tensors: Sequence[Any], op: int, prescale: str, postscale: str, tensor_name: str, process_set_id: int = 0
    ) -> list[Any]:
        """All-reduces the tensors, concatenated into one."""
        flat = tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], 0)
        reduced = self.tfcollective_allreduce(flat, op, prescale, postscale, tensor_name, process_set_id)
        parts = tf.split(reduced, [tf.size(tensor) for tensor in tensors], num=len(tensors))
        return [tf.reshape(part, tf.shape(tensor)) for part, tensor in zip(parts, tensors, strict=True)]

    def tfcollective_allgather(self, tensor: Any, tensor_name: str, process_set_id: int = 0) -> Any:
        """Gathers the rows of all ranks."""
        tensor_name = _without_label(tensor_name)

        def gather(array: Any) -> Any:
            return _communicator(process_set_id).allgather(array, name=tensor_name)

        attributes = {"tensor_name": tensor_name, "process_set_id": process_set_id}
        return self._run("TfcollectiveAllgather", gather, [tensor], [tensor.dtype], attributes)[0]

    def tfcollective_broadcast(self, tensor: Any, root_rank: int, tensor_name: str, process_set_id: int = 0) -> Any:
        """The root's tensor."""
        tensor_name = _without_label(tensor_name)

        def broadcast(array: Any) -> Any:
            return _communicator(process_set_id).broadcast(array, root_rank, name=tensor_name)

        attributes = {"root_rank": root_rank, "tensor_name": tensor_name, "process_set_id": process_set_id}
        return self._run("TfcollectiveBroadcast", broadcast, [tensor], [tensor.dtype], attributes)[0]

    def tfcollective_reducescatter(
        self, tensor: Any, op: int, prescale: str, postscale: str, tensor_name: str, process_set_id: int = 0
    ) -> Any:
        """Returns this rank's rows of the reduced tensor."""
        return self._combine("Reducescatter", tensor, op, prescale, postscale, tensor_name, process_set_id)

    def tfcollective_alltoall(
        self, tensor: Any, splits: Any, tensor_name: str, process_set_id: int = 0
    ) -> tuple[Any, Any]:
        """Rows from all ranks, and how many came from each."""
        import numpy as np

        def exchange(array: Any, counts: Any) -> Any:
            rows, received = _communicator(process_set_id).alltoall(array, counts, name=tensor_name)
            return rows, np.array(received, np.int64)

        attributes = {"tensor_name": tensor_name, "process_set_id": process_set_id}
        rows, received = self._run(
            "TfcollectiveAlltoall", exchange, [tensor, splits], [tensor.dtype, tf.int64], attributes
        )
        return rows, received

    def tfcollective_barrier(self, tensor_name: str, process_set_id: int = 0) -> Any:
        """Ends when all ranks have come to it."""
        import numpy as np

        def wait() -> Any:
            _communicator(process_set_id).barrier(name=tensor_name)
            return np.int32(0)

        done = self._forward(wait, [], [tf.int32])[0]
        return None if tf.executing_eagerly() else done.op

    def tfcollective_join(self) -> Any:
        """Raises UnsupportedError: only the native engine and Horovod let ranks join."""
        raise UnsupportedError("join: only with the engines native and horovod")

    def _combine(
        self, kind: str, tensor: Any, op: int, prescale: str, postscale: str, tensor_name: str, process_set_id: int
    ) -> Any:
        factors = {"prescale": prescale, "postscale": postscale}

        def combine(array: Any) -> Any:
            call = getattr(_communicator(process_set_id), kind.lower())
            return call(array, Op(op), name=tensor_name, **{name: float(value) for name, value in factors.items()})

        attributes = {"op": op, **factors, "tensor_name": tensor_name, "process_set_id": process_set_id}
        return self._run(f"Tfcollective{kind}", combine, [tensor], [tensor.dtype], attributes)[0]

    def _run(
        self, kind: str, function: Callable[..., Any], inputs: Sequence[Any], dtypes: Sequence[Any], attributes: Any
    ) -> list[Any]:
        """The op, with the gradient that is registered for the native op of this kind."""
        return with_gradient(kind, lambda *tensors: self._forward(function, tensors, dtypes), inputs, attributes)

    def _forward(self, function: Callable[..., Any], inputs: Sequence[Any], dtypes: Sequence[Any]) -> list[Any]:
        if tf.executing_eagerly():
            try:
                results = function(*(tensor.numpy() for tensor in inputs))
            except CollectiveError as error:
                raise tensorflow_error(error) from error
            return [tf.convert_to_tensor(one) for one in (results if isinstance(results, tuple) else (results,))]
        graph = tf.compat.v1.get_default_graph()
        before = [] if graph.building_function or graph not in self._last else [self._last[graph]]
        with tf.control_dependencies(before):  # the ops of a function are put in order by TensorFlow itself
            results = tf.numpy_function(function, list(inputs), list(dtypes), stateful=True)
        if not graph.building_function:
            self._last[graph] = results[0].op
        return list(results)


def _communicator(process_set_id: int) -> Any:
    return runtime.communicator_of_set(process_set_id)


def _attribute(attributes: dict[str, Any], name: str) -> Any:
    value = attributes[name]
    return value.encode() if isinstance(value, str) else value


# The errors that the native ops give: a test compares them with canonical_codes.h.
_ERRORS = {
    Code.INVALID_ARGUMENT: tf.errors.InvalidArgumentError,
    Code.FAILED_PRECONDITION: tf.errors.FailedPreconditionError,
    Code.MISMATCH: tf.errors.FailedPreconditionError,
    Code.DEADLINE_EXCEEDED: tf.errors.DeadlineExceededError,
    Code.PEER_LOST: tf.errors.AbortedError,
    Code.ABORTED: tf.errors.AbortedError,
    Code.CANCELLED: tf.errors.CancelledError,
    Code.IO: tf.errors.InternalError,
    Code.DEVICE: tf.errors.InternalError,
    Code.RESOURCE_EXHAUSTED: tf.errors.ResourceExhaustedError,
    Code.UNIMPLEMENTED: tf.errors.UnimplementedError,
    Code.PROTOCOL: tf.errors.FailedPreconditionError,
    Code.INTERNAL: tf.errors.InternalError,
}


def tensorflow_error(error: CollectiveError) -> Exception:
    """The error that TensorFlow would show for it."""
    made: Exception = _ERRORS[error.code](None, None, f"{error.code.name}: {error}")
    return made


# ---- Horovod ---------------------------------------------------------------------------------------------------------


def _where(process_set_id: int) -> dict[str, Any]:
    return {"process_set": _communicator(process_set_id).process_set}


def _node_name(name: str) -> str:
    """Horovod names the node of the graph so, and matches by that."""
    return "tfcollective_" + re.sub(r"\W", "_", _without_label(name))


def _wire(dtype: Any) -> Any:
    return tf.as_dtype(wire_type(dtype.name, ("float16", "int8")))


class HorovodOps(WithoutPlans):
    """Horovod's ops. Types that it does not reduce travel as wider ones."""

    def __init__(self) -> None:
        import horovod.tensorflow as hvd

        self._hvd = hvd

    def tfcollective_allreduce(
        self, tensor: Any, op: int, prescale: str, postscale: str, tensor_name: str, process_set_id: int = 0
    ) -> Any:
        """See ``native/tf_ops/op_definitions.cc``; so the others."""
        return self.tfcollective_grouped_allreduce([tensor], op, prescale, postscale, tensor_name, process_set_id)[0]

    def tfcollective_grouped_allreduce(
        self, tensors: Sequence[Any], op: int, prescale: str, postscale: str, tensor_name: str, process_set_id: int = 0
    ) -> list[Any]:
        """Reduces all tensors in one operation."""
        tensors = [tf.convert_to_tensor(tensor) for tensor in tensors]
        dtype = tensors[0].dtype
        if dtype == tf.bool:
            op = wire_op(Op(op), dtype.name)
        # Horovod divides integers by multiplying with a fraction, after their sum has wrapped: the division is ours.
        divides = op == Average and not dtype.is_floating
        wire = [tf.cast(tensor, tf.int64 if divides else _wire(dtype)) for tensor in tensors]
        process_set = _communicator(process_set_id).process_set
        factors = {
            "prescale_factor": float(prescale),
            "postscale_factor": float(postscale),
            "process_set": process_set,
        }
        reduction = int(Sum) if divides else int(op)
        if len(wire) == 1:
            reduced = [self._hvd.allreduce(wire[0], op=reduction, name=_node_name(tensor_name), **factors)]
        else:
            reduced = self._hvd.grouped_allreduce(wire, op=reduction, **factors)
        if divides:
            count = process_set.size()
            reduced = [tf.cast(tf.truncatediv(one, tf.cast(count, one.dtype)), one.dtype) for one in reduced]
        return [tf.cast(one, dtype) for one in reduced]

    def tfcollective_allgather(self, tensor: Any, tensor_name: str, process_set_id: int = 0) -> Any:
        """Gathers the rows of all ranks."""
        wire = _wire(tensor.dtype)
        gathered = self._hvd.allgather(tf.cast(tensor, wire), name=_node_name(tensor_name), **_where(process_set_id))
        return tf.cast(gathered, tensor.dtype)

    def tfcollective_broadcast(self, tensor: Any, root_rank: int, tensor_name: str, process_set_id: int = 0) -> Any:
        """The root's tensor."""
        wire = _wire(tensor.dtype)
        root = _communicator(process_set_id).world_rank(root_rank)
        sent = self._hvd.broadcast(tf.cast(tensor, wire), root, name=_node_name(tensor_name), **_where(process_set_id))
        return tf.cast(sent, tensor.dtype)

    def tfcollective_reducescatter(
        self, tensor: Any, op: int, prescale: str, postscale: str, tensor_name: str, process_set_id: int = 0
    ) -> Any:
        """Returns this rank's rows of the reduced tensor."""
        whole = self.tfcollective_allreduce(tensor, op, prescale, postscale, tensor_name, process_set_id)
        members = _communicator(process_set_id)
        each, more = tf.shape(tensor)[0] // members.size, tf.shape(tensor)[0] % members.size
        rank = members.rank
        begin = rank * each + tf.minimum(rank, more)
        return whole[begin : begin + each + tf.cast(rank < more, tf.int32)]

    def tfcollective_alltoall(
        self, tensor: Any, splits: Any, tensor_name: str, process_set_id: int = 0
    ) -> tuple[Any, Any]:
        """Rows from all ranks, and how many came from each."""
        wire = _wire(tensor.dtype)
        counts = tf.cast(splits, tf.int32)
        rows, received = self._hvd.alltoall(
            tf.cast(tensor, wire), splits=counts, name=_node_name(tensor_name), **_where(process_set_id)
        )
        return tf.cast(rows, tensor.dtype), tf.cast(received, tf.int64)

    def tfcollective_barrier(self, tensor_name: str, process_set_id: int = 0) -> Any:
        """Horovod has none for TensorFlow: a sum of nothing."""
        done = self._hvd.allreduce(tf.constant(0), op=int(Sum), name=_node_name(tensor_name), **_where(process_set_id))
        return None if tf.executing_eagerly() else done.op

    def tfcollective_join(self) -> Any:
        """Horovod's join, with Horovod's average: it divides by all ranks."""
        return self._hvd.join()
