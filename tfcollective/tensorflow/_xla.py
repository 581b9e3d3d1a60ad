"""The collectives of functions that XLA compiles: custom calls, which run in ``native/tf_xla/``.

A call is a StableHLO module of its own, written while the function is traced. XLA knows no order of calls but that of
their data, so each gives a number to the next one of the function. Nothing in a program says how many ranks there are,
but shapes that depend on it: a program runs on in a world of another size.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from tfcollective import _runtime as runtime
from tfcollective._base.errors import UnsupportedError
from tfcollective._runtime import Members
from tfcollective.tensorflow._external_ops import with_gradient
from tfcollective.tensorflow._plan import BucketPlan

_TARGET = "tfcollective"  # native/tf_xla/registration.cc
_AFTER = "_tfcollective_after"  # of a function's graph: what its next call comes after
_MODULE_VERSION = 10  # of XlaCallModule, with types of StableHLO
_TYPES = {
    "bool": "i1",
    "int8": "i8",
    "int16": "i16",
    "int32": "i32",
    "int64": "i64",
    "uint8": "ui8",
    "uint16": "ui16",
    "uint32": "ui32",
    "uint64": "ui64",
    "float16": "f16",
    "bfloat16": "bf16",
    "float32": "f32",
    "float64": "f64",
}


def is_compiled() -> bool:
    """True while a function is traced that XLA compiles."""
    if tf.executing_eagerly():
        return False
    graph = tf.compat.v1.get_default_graph()
    while graph is not None:
        context = getattr(graph, "_get_control_flow_context", lambda: None)()
        while context is not None:
            if context.IsXLAContext():
                return True
            context = context.outer_context
        graph = getattr(graph, "outer_graph", None)
    return False


@functools.cache
def problem_of(library: Path) -> str:
    """The reason why programs compiled by this TensorFlow's XLA cannot call collectives; empty if they can.

    Args:
        library: of the ops, which is loaded.
    """
    register = ctypes.CDLL(str(library)).tfc_xla_problem
    register.restype = ctypes.c_char_p
    found = register().decode()
    if not found and tf.config.get_visible_devices("GPU"):
        return "there are no calls for GPUs yet"
    return str(found)


def run_plan(plan: BucketPlan, buckets: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """Reduces all buckets of a plan in one call.

    Args:
        buckets: the tensors of each, in the order of the plan.
    """
    attributes = {
        "plan": plan.name,
        "signature": plan.signature,
        "num_buckets": len(buckets),
        "bucket": 0,
        "sizes": " ".join(str(len(bucket)) for bucket in buckets),
        "op": int(plan.reduction.op),
        "prescale": repr(plan.reduction.prescale),
        "postscale": repr(plan.reduction.postscale),
        "process_set_id": plan.process_set_id,
    }
    tensors = [tensor for bucket in buckets for tensor in bucket]
    results = iter(_call("plan", tensors, [(one.dtype, one.shape) for one in tensors], attributes))
    return [[next(results) for _ in bucket] for bucket in buckets]


def place_of(members: Members) -> tuple[Any, Any]:
    """This process's place among the members and their number when the program runs: int32."""
    place = _call("place", [], [(tf.int32, tf.TensorShape([2]))], {"process_set_id": members.process_set_id})[0]
    return place[0], place[1]


class XlaOps:
    """The ops of ``native/tf_ops/op_definitions.cc``, by name, for functions that XLA compiles."""

    def tfcollective_allreduce(
        self, tensor: Any, op: int, prescale: str, postscale: str, tensor_name: str, process_set_id: int = 0
    ) -> Any:
        """See ``native/tf_ops/op_definitions.cc``; so the others."""
        attributes = _reduction(op, prescale, postscale, tensor_name, process_set_id)
        return _differentiable("Allreduce", [tensor], [tensor.shape], attributes)[0]

    def tfcollective_grouped_allreduce(
        self, tensors: Sequence[Any], op: int, prescale: str, postscale: str, tensor_name: str, process_set_id: int = 0
    ) -> list[Any]:
        """Reduces all tensors in one operation."""
        attributes = _reduction(op, prescale, postscale, tensor_name, process_set_id)
        tensors = [tf.convert_to_tensor(one) for one in tensors]
        return _differentiable("GroupedAllreduce", tensors, [one.shape for one in tensors], attributes)

    def tfcollective_broadcast(self, tensor: Any, root_rank: int, tensor_name: str, process_set_id: int = 0) -> Any:
        """The root's tensor."""
        attributes = {"root_rank": root_rank, "tensor_name": tensor_name, "process_set_id": process_set_id}
        return _differentiable("Broadcast", [tensor], [tensor.shape], attributes)[0]

    def tfcollective_allgather(self, tensor: Any, tensor_name: str, process_set_id: int = 0) -> Any:
        """Gathers the rows of all ranks, which have equally many."""
        rows = _rows(tensor, "allgather", process_set_id) * runtime.members_of_set(process_set_id).size
        attributes = {"tensor_name": tensor_name, "process_set_id": process_set_id}
        return _differentiable("Allgather", [tensor], [_with_rows(tensor, rows)], attributes)[0]

    def tfcollective_reducescatter(
        self, tensor: Any, op: int, prescale: str, postscale: str, tensor_name: str, process_set_id: int = 0
    ) -> Any:
        """Returns this rank's rows of the reduced tensor; all ranks get equally many."""
        size = runtime.members_of_set(process_set_id).size
        each, more = divmod(_rows(tensor, "reducescatter", process_set_id), size)
        if more:
            raise UnsupportedError(
                f"reducescatter: XLA needs rows that can be parted equally: {each * size + more} between {size} ranks"
            )
        attributes = _reduction(op, prescale, postscale, tensor_name, process_set_id)
        return _differentiable("Reducescatter", [tensor], [_with_rows(tensor, each)], attributes)[0]

    def tfcollective_alltoall(self, *_arguments: Any, **_attributes: Any) -> Any:
        """Raises UnsupportedError: the shape of the result depends on the other ranks' numbers."""
        raise UnsupportedError("alltoall: XLA compiles functions whose shapes are known: call it outside of them")

    def tfcollective_barrier(self, tensor_name: str, process_set_id: int = 0) -> Any:
        """Ends when all ranks have come to it."""
        _call("barrier", [], [], {"tensor_name": tensor_name, "process_set_id": process_set_id})
        return tf.no_op()

    def tfcollective_join(self) -> Any:
        """Raises UnsupportedError: a rank that joins waits for as long as the others train."""
        raise UnsupportedError("join: call it outside of functions that XLA compiles")


def _reduction(op: int, prescale: str, postscale: str, tensor_name: str, process_set_id: int) -> dict[str, Any]:
    factors = {"prescale": prescale, "postscale": postscale}
    return {"op": op, **factors, "tensor_name": tensor_name, "process_set_id": process_set_id}


def _rows(tensor: Any, what: str, process_set_id: int) -> int:
    if runtime.members_of_set(process_set_id).elastic:
        raise UnsupportedError(
            f"{what}: the shape of its result depends on the number of ranks, which changes in an elastic job: call it "
            "outside of functions that XLA compiles"
        )
    rows = tf.TensorShape(tensor.shape)[0]
    if rows is None:
        raise UnsupportedError(f"{what}: XLA has to know how many rows there are: batch(..., drop_remainder=True)")
    return int(rows)


def _with_rows(tensor: Any, rows: int) -> Any:
    return tf.TensorShape([rows]).concatenate(tensor.shape[1:])


def _differentiable(kind: str, tensors: Sequence[Any], shapes: Sequence[Any], attributes: dict[str, Any]) -> list[Any]:
    call = "allreduce" if kind == "GroupedAllreduce" else kind.lower()

    def forward(*inputs: Any) -> list[Any]:
        specs = [(tensors[0].dtype, shape) for shape in shapes]
        return _call(call, inputs, specs, attributes)

    return with_gradient(f"Tfcollective{kind}", forward, tensors, attributes)


def _call(kind: str, tensors: Sequence[Any], specs: Sequence[tuple[Any, Any]], attributes: dict[str, Any]) -> list[Any]:
    """Runs a custom call after the last one of this function.

    Args:
        specs: dtype and shape of each result.
    """
    from tensorflow.compiler.tf2xla.python import xla

    graph = tf.compat.v1.get_default_graph()
    operands = [_last_call(graph), *tensors]
    specs = [(tf.int32, tf.TensorShape([])), *specs]
    module = _module(
        [_type(one.dtype, one.shape) for one in operands],
        [_type(dtype, shape) for dtype, shape in specs],
        {"kind": kind, "timeout": 0.0, **attributes},
    )
    after, *results = xla.call_module(
        operands,
        version=_MODULE_VERSION,
        module=module.encode(),
        Tout=[dtype for dtype, _ in specs],
        Sout=[shape for _, shape in specs],
        platforms=["CPU"],
    )
    setattr(graph, _AFTER, after)
    return list(results)


def _last_call(graph: Any) -> Any:
    """The number that the last call has given: of this function, or of the branches and loops around it."""
    while graph is not None:
        if hasattr(graph, _AFTER):
            return getattr(graph, _AFTER)
        if type(graph) is tf.__internal__.FuncGraph:  # a tf.function's own, which others may call, too
            break
        graph = getattr(graph, "outer_graph", None)
    return tf.constant(0, tf.int32)


def _type(dtype: Any, shape: Any) -> str:
    known = tf.TensorShape(shape)
    if dtype.name not in _TYPES or known.rank is None:
        raise UnsupportedError(
            f"a tensor of the type {dtype.name} and the shape {known}: XLA needs numbers, with a known number of "
            "dimensions"
        )
    dimensions = "".join("?x" if size is None else f"{size}x" for size in known.as_list())
    return f"tensor<{dimensions}{_TYPES[dtype.name]}>"


def _module(inputs: Sequence[str], outputs: Sequence[str], attributes: dict[str, Any]) -> str:
    """The StableHLO of a call. A result with unknown dimensions has the shape of the argument at its place."""
    arguments = ", ".join(f"%a{index}: {kind}" for index, kind in enumerate(inputs))
    given, lines, more = [f"%a{index}" for index in range(len(inputs))], [], ""
    polymorphic = ""
    taken = list(inputs)
    if any("?" in kind for kind in outputs):
        for index, kind in enumerate(outputs):
            lines += _shape_operand(index, kind)
            taken.append(f"tensor<{kind.count('x')}xi32>")
        given += [f"%s{index}" for index in range(len(outputs))]
        polymorphic = (
            "attributes {jax.uses_shape_polymorphism = true} "  # TensorFlow refines shapes of such modules only
        )
        places = ", ".join(str(len(inputs) + index) for index in range(len(outputs)))
        more = f", indices_of_shape_operands = dense<[{places}]> : tensor<{len(outputs)}xi64>"
    results = ", ".join(f"%r#{index}" for index in range(len(outputs))) if len(outputs) > 1 else "%r"
    count = f":{len(outputs)}" if len(outputs) > 1 else ""
    config = ", ".join(f"{name} = {_text(value)}" for name, value in attributes.items())
    types = ", ".join(outputs)
    return (
        f"module {polymorphic}{{ func.func public @main({arguments}) -> ({types}) {{ {' '.join(lines)} "
        f'%r{count} = "stablehlo.custom_call"({", ".join(given)}) {{call_target_name = "{_TARGET}", '
        f"api_version = 4 : i32, has_side_effect = true, backend_config = {{{config}}}{more}}} : "
        f"({', '.join(taken)}) -> ({types}) return {results} : {types} }} }}"
    )


def _shape_operand(index: int, kind: str) -> list[str]:
    """The lines that compute the shape of a result, %s and its index: XLA knows it where it compiles the program."""
    *sizes, _element = kind.removeprefix("tensor<").split("x")
    if "?" not in sizes:
        known = ", ".join(sizes)
        return [f"%s{index} = stablehlo.constant dense<[{known}]> : tensor<{len(sizes)}xi32>"]
    lines, parts = [], []
    for place, size in enumerate(sizes):
        name = f"%s{index}_{place}"
        parts.append(name)
        if size == "?":
            lines.append(f"{name}_of = stablehlo.get_dimension_size %a{index}, dim = {place} : ({kind}) -> tensor<i32>")
            lines.append(f"{name} = stablehlo.reshape {name}_of : (tensor<i32>) -> tensor<1xi32>")
        else:
            lines.append(f"{name} = stablehlo.constant dense<[{size}]> : tensor<1xi32>")
    types = ", ".join("tensor<1xi32>" for _ in parts)
    joined = f"stablehlo.concatenate {', '.join(parts)}, dim = 0 : ({types}) -> tensor<{len(parts)}xi32>"
    return [*lines, f"%s{index} = {joined}"]


def _text(value: str | float) -> str:
    """An attribute as MLIR writes it."""
    if isinstance(value, str):
        plain = (chr(byte) if 32 <= byte < 127 and byte not in b'"\\' else f"\\{byte:02X}" for byte in value.encode())
        return f'"{"".join(plain)}"'
    return f"{value} : i64" if isinstance(value, int) else f"{value} : f64"
