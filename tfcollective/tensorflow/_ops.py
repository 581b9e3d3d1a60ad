"""The TensorFlow ops of ``_tf_ops.so``: loaded when the first one is needed, never by ``import`` or ``init()``."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from tfcollective import _runtime as runtime
from tfcollective._base.errors import ConfigError, UnsupportedError
from tfcollective._base.log import get_logger
from tfcollective._base.version import TENSORFLOWS
from tfcollective._runtime import native_library as _native
from tfcollective._runtime.communicator import Op
from tfcollective._runtime.engine import TensorFlowOps
from tfcollective.tensorflow import _xla as xla
from tfcollective.tensorflow._external_ops import horovod_ops, python_ops
from tfcollective.tensorflow._gpu_kernels import load_where_needed
from tfcollective.tensorflow._plan import BucketPlan

LIBRARY_NAME = "_tf_ops.so"

_LOG = get_logger(__name__)
_lock = threading.Lock()
_module: Any = None


def load() -> Any:
    """Returns the op functions of the engine in use: from the op library, loaded once a process, or replacements. In a
    function that XLA compiles, calls of the compiled program.

    Raises:
        ConfigError: the library does not load into this TensorFlow.
        UnsupportedError: a function that XLA compiles is being traced, and cannot communicate.
    """
    if xla.is_compiled():
        return _load_xla()
    return _LOADERS[runtime.current().engine.tensorflow_ops]()


def xla_problem() -> str:
    """The reason why functions that XLA compiles cannot communicate here; empty if they can."""
    engine = runtime.current().engine
    if engine.tensorflow_ops != "library":
        return "only the native engine has calls for compiled programs"
    _load_once()
    return xla.problem_of(_library_path(_native.load(runtime.settings().library).path))


@functools.cache
def _xla_ops() -> xla.XlaOps:
    return xla.XlaOps()


def _load_xla() -> xla.XlaOps:
    """XLA's own complaint comes when the step runs, fills pages and does not say what to do."""
    found = xla_problem()
    if found:
        raise UnsupportedError(
            f"XLA cannot compile a function that communicates: {found}. Make its tf.function, or model.compile(), "
            "without jit_compile=True, or keep the collective outside of the compiled function."
        )
    return _xla_ops()


def _load_once() -> Any:
    global _module
    if _module is None:
        with _lock:
            if _module is None:
                _module = _load_library()
    if not tf.compat.v1.executing_eagerly_outside_functions():
        _note_unordered_calls()
    return _module


def _note_unordered_calls() -> None:
    """Notes that operations run in any order: a session, unlike a tf.function, may delay one by an input that sleeps
    while another is waited for, which looks like a deadlock and is none."""
    _native.load(runtime.settings().library).function("tfc_note_unordered_calls")()


_LOADERS: dict[TensorFlowOps, Callable[[], Any]] = {
    "library": _load_once,
    "horovod": horovod_ops,
    "python": python_ops,
}


def _load_library() -> Any:
    _warn_of_untried(tf.__version__)
    core = _native.load(runtime.settings().library)  # so that both find one copy of the core
    path = _library_path(core.path)
    try:
        module = tf.load_op_library(str(path))
    except (OSError, tf.errors.NotFoundError, tf.errors.InvalidArgumentError) as error:
        raise ConfigError(
            f"cannot load {path} into TensorFlow {tf.__version__}: {error}. Run `tfcollective check`."
        ) from error
    load_where_needed(core.path, runtime.settings())
    return module


def _library_path(core: Path) -> Path:
    """The op library: beside the core library that is in use."""
    return core.parent / LIBRARY_NAME


def _warn_of_untried(version: str) -> None:
    """Asynchronous kernels lean on a detail of TensorFlow (where the done-callback lives) that is the same in all that
    were tried."""
    minor = ".".join(version.split(".")[:2])
    if minor not in TENSORFLOWS:
        _LOG.warning(
            "tfcollective was not tried with TensorFlow %s (tried: %s to %s); run `tfcollective check`",
            version,
            TENSORFLOWS[0],
            TENSORFLOWS[-1],
        )


def _factors(prescale: float, postscale: float) -> dict[str, str]:
    """The attributes of a reduction's factors: text, as TensorFlow's float attributes would round them to 24 bits."""
    return {"prescale": repr(float(prescale)), "postscale": repr(float(postscale))}


def allreduce(
    tensor: Any, *, op: Op, name: str, prescale: float = 1.0, postscale: float = 1.0, process_set_id: int = 0
) -> Any:
    """Returns a tensor combined over the ranks of the process set; shape and dtype stay."""
    result = load().tfcollective_allreduce(
        tensor, op=int(op), **_factors(prescale, postscale), tensor_name=name, process_set_id=process_set_id
    )
    result.set_shape(tensor.shape)
    return result


def grouped_allreduce(
    tensors: Sequence[Any], *, op: Op, prescale: float, postscale: float, name: str, process_set_id: int = 0
) -> list[Any]:
    """Tensors of one dtype, combined in one operation."""
    results = load().tfcollective_grouped_allreduce(
        tensors, op=int(op), **_factors(prescale, postscale), tensor_name=name, process_set_id=process_set_id
    )
    return _with_shapes(results, tensors)


def allgather(tensor: Any, *, name: str, label: str = "", process_set_id: int = 0) -> Any:
    """Returns all ranks' rows, in rank order. `label` is shown in messages and may differ from rank to rank."""
    result = load().tfcollective_allgather(tensor, tensor_name=_labelled(name, label), process_set_id=process_set_id)
    result.set_shape(tf.TensorShape([None]).concatenate(tensor.shape[1:]))
    return result


def broadcast(tensor: Any, *, root: int, name: str, label: str = "", process_set_id: int = 0) -> Any:
    """The root's tensor. `label` is shown in messages and may differ from rank to rank."""
    result = load().tfcollective_broadcast(
        tensor, root_rank=root, tensor_name=_labelled(name, label), process_set_id=process_set_id
    )
    result.set_shape(tensor.shape)
    return result


def reducescatter(tensor: Any, *, op: Op, prescale: float, postscale: float, name: str, process_set_id: int = 0) -> Any:
    """Returns this rank's rows of the combined tensor."""
    return load().tfcollective_reducescatter(
        tensor, op=int(op), **_factors(prescale, postscale), tensor_name=name, process_set_id=process_set_id
    )


def alltoall(tensor: Any, splits: Any, *, name: str, process_set_id: int = 0) -> tuple[Any, Any]:
    """Rows from all ranks, and how many came from each (int64[size])."""
    result, received = load().tfcollective_alltoall(tensor, splits, tensor_name=name, process_set_id=process_set_id)
    result.set_shape(tf.TensorShape([None]).concatenate(tensor.shape[1:]))
    return result, received


def barrier(*, name: str, process_set_id: int = 0) -> Any:
    """An operation that ends when all ranks have come to it."""
    return load().tfcollective_barrier(tensor_name=name, process_set_id=process_set_id)


def join() -> Any:
    """int32: the rank that joined the world last; this rank has no more data."""
    return load().tfcollective_join()


def start_plan(plan: BucketPlan, buckets: Sequence[Sequence[Any]]) -> Callable[[], list[list[Any]]]:
    """Hands the buckets of a plan to the engine, and ends at once.

    Args:
        buckets: the tensors of each, in the order of the plan.

    Returns:
        A function that waits for the buckets, and gives the results of each.
    """
    if xla.is_compiled():
        _load_xla()
        results = xla.run_plan(plan, buckets)
        return lambda: results
    handles = [bucket_start(tensors, plan=plan, bucket=number) for number, tensors in enumerate(buckets)]

    def finish() -> list[list[Any]]:
        # No result is waited for before the last bucket is started: TensorFlow runs the stateful ops of a function one
        # after the other, and a v1 graph in any order that the control dependencies leave.
        with tf.control_dependencies(tf.nest.flatten(handles)):
            return [bucket_done(*started) for started in zip(handles, buckets, strict=True)]

    return finish


def bucket_start(tensors: Sequence[Any], *, plan: BucketPlan, bucket: int) -> Any:
    """Hands a bucket to the engine; ends at once. The result is what :func:`bucket_done` of the same bucket takes."""
    return load().tfcollective_bucket_start(
        tensors,
        plan=plan.name,
        signature=plan.signature,
        num_buckets=len(plan.buckets),
        bucket=bucket,
        process_set_id=plan.process_set_id,
        op=int(plan.reduction.op),
        **_factors(plan.reduction.prescale, plan.reduction.postscale),
    )


def bucket_done(started: Any, tensors: Sequence[Any]) -> list[Any]:
    """Waits for a bucket and gives its results, shaped like `tensors`."""
    results = load().tfcollective_bucket_done(started, T=tensors[0].dtype, N=len(tensors))
    return _with_shapes(results, tensors)


def _labelled(name: str, label: str) -> str:
    """See ``tfc_request`` in the C header."""
    return f"{name}\t{label}" if label else name


def _with_shapes(results: Sequence[Any], tensors: Sequence[Any]) -> list[Any]:
    for result, tensor in zip(results, tensors, strict=True):
        result.set_shape(tensor.shape)
    return list(results)
