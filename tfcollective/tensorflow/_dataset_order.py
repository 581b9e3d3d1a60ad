"""Checks whether a ``tf.data`` pipeline gives its elements in the same order in every process.

Read from the pipeline's transformations and from the graphs of their functions, which may make datasets of their own
(``interleave``, ``flat_map``). TensorFlow has no public way to ask: where its objects are not as expected, nothing is
found.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import tensorflow as tf

# Ops that draw random numbers, and the place of the first of their two seeds among their inputs.
_SEEDS = {"ShuffleDataset": 2, "ShuffleAndRepeatDataset": 2, "RandomDataset": 0}
# Ops say by this attribute whether their elements keep their order: "true", "false", or "default": as the options say.
_ATTRIBUTE = "deterministic"
_RESHUFFLES = "reshuffle_each_iteration"


def left_to_chance(dataset: Any) -> str | None:
    """Returns what makes the order of the dataset's elements differ between processes; None if nothing is known to.

    That is a shuffle (also that of ``Dataset.list_files``), ``Dataset.random`` or ``sample_from_datasets`` without a
    seed, and parallel transformations that need not be deterministic. Elements that a ``map`` changes at random keep
    their places.
    """
    unordered = ("false", "default") if getattr(dataset.options(), "deterministic", None) is False else ("false",)
    for part in pipeline(dataset):
        name = type(part).__name__.strip("_")
        if _is_zero(getattr(part, "_seed", None)) and _is_zero(getattr(part, "_seed2", None)):
            return f"{name} without a seed"
        if _order(part) in unordered:
            return f"{name} with deterministic=False"
        for function in part._functions():
            found = _in_graph(function.function.graph.as_graph_def(), unordered)
            if found is not None:
                return f"{found} in the function of {name}"
    return None


def reshuffles(dataset: Any) -> bool:
    """True if a shuffle gives the elements in another order at each iteration of the dataset."""
    for part in pipeline(dataset):
        if getattr(part, "_reshuffle_each_iteration", False):
            return True
        for function in part._functions():
            graph = function.function.graph.as_graph_def()
            bodies = (graph.node, *(one.node_def for one in graph.library.function))
            if any(node.attr[_RESHUFFLES].b for nodes in bodies for node in nodes if _RESHUFFLES in node.attr):
                return True
    return False


def seeds_of(dataset: Any) -> list[int]:
    """The seeds of the shuffles of an eager dataset, of which ``tf.random.set_seed`` is one: others, another order."""
    names = ("_seed", "_seed2")
    held = [getattr(part, name, None) for part in pipeline(dataset) for name in names]
    return [int(tf.get_static_value(seed)) for seed in held if seed is not None]


def is_shard(dataset: Any) -> bool:
    """True if the dataset is made from a part of another one, by ``Dataset.shard``."""
    return any(type(part).__name__.strip("_") == "ShardDataset" for part in pipeline(dataset))


# Datasets that begin a pipeline, and the attributes that say what they give.
_SOURCES = {
    "TensorSliceDataset": ("_tensors",),
    "TensorDataset": ("_tensors",),
    "TFRecordDatasetV2": ("_filenames",),
    "TextLineDatasetV2": ("_filenames",),
    "RangeDataset": ("_start", "_stop", "_step"),
}
_PARTS = ("_count",)  # of skip, take and others: ways to divide by hand
_HIDING = ("GeneratorDataset", "PyFunc", "EagerPyFunc", "ShardDataset")  # ops whose elements may be a rank's own


def content_of(dataset: Any) -> list[Any] | None:
    """Returns what distinguishes the data of a dataset from those of another one: tensors and numbers in an order that
    processes with the same program share. None for one rank's part (``shard``), and where it cannot be seen, as with
    generators.
    """
    found: list[Any] = []
    for part in pipeline(dataset):
        kind = type(part).__name__.strip("_")
        if kind == "ShardDataset" or (not part._inputs() and kind not in _SOURCES):
            return None
        for function in part._functions():
            graph = function.function.graph.as_graph_def()
            bodies = (graph.node, *(one.node_def for one in graph.library.function))
            nodes = [node for nodes in bodies for node in nodes]
            if any(node.op in _HIDING for node in nodes):
                return None
            found += [node.attr["value"].tensor.SerializeToString().hex() for node in nodes if node.op == "Const"]
            found += [one for one in function.function.captured_inputs if tf.is_tensor(one) and one.dtype.is_integer]
        named = (*_SOURCES.get(kind, ()), *_PARTS)
        found += [one for name in named for one in tf.nest.flatten(getattr(part, name, None)) if one is not None]
    return found


def gives_batches(dataset: Any) -> bool:
    """True if the dataset's elements are batches that ``batch`` has made; not if another function takes them apart."""
    return _batching(dataset) is not None


def batch_size_of(dataset: Any) -> int | None:
    """The number of rows of the batches that ``batch`` has made; None if they are not known."""
    size = getattr(_batching(dataset), "_batch_size", None)
    value = tf.get_static_value(size) if tf.is_tensor(size) else size
    return None if value is None else int(value)


def _batching(dataset: Any) -> Any:
    """The part of a pipeline that makes its elements batches; None if there is none."""
    part = dataset
    while part is not None:
        kind = type(part).__name__.strip("_")
        if kind in ("BatchDataset", "ParallelBatchDataset", "PaddedBatchDataset", "ParallelMapAndBatchDataset"):
            return part
        if kind in ("UnbatchDataset", "FlatMapDataset", "InterleaveDataset", "ParallelInterleaveDataset"):
            return None
        part = next(iter(_made_from(part)), None)
    return None


def _made_from(part: Any) -> list[Any]:
    inner = getattr(part, "_dataset", None)  # of the adapters of tf.compat.v1
    if isinstance(inner, tf.data.Dataset):
        return [inner]
    return list(part._inputs()) if hasattr(part, "_inputs") else []


def _order(part: Any) -> str | None:
    """A part's attribute of the order of its elements; None if it has none."""
    kept = getattr(part, "_deterministic", None)
    if isinstance(kept, str):
        return kept
    if not type(part).__name__.strip("_").startswith("Parallel"):
        return None
    # That of Dataset.interleave hands its word to the op and does not keep it.
    tensor = part._variant_tensor
    nodes = [tensor.op.node_def] if tf.is_symbolic_tensor(tensor) else _nodes(part)
    words = [word for word in map(_order_of_node, nodes) if word is not None]
    return words[-1] if words else "default"  # the part's own node comes after those of its inputs


def _nodes(dataset: Any) -> list[Any]:
    """The nodes of an eager dataset; none where TensorFlow cannot show them, as with more than 2 GiB of tensors."""
    policy = tf.data.experimental.ExternalStatePolicy.IGNORE
    try:
        graph = dataset._as_serialized_graph(external_state_policy=policy)
    except tf.errors.OpError:
        return []
    return list(tf.compat.v1.GraphDef.FromString(graph.numpy()).node)


def _order_of_node(node: Any) -> str | None:
    return node.attr[_ATTRIBUTE].s.decode() if "Dataset" in node.op and _ATTRIBUTE in node.attr else None


def pipeline(dataset: Any) -> Iterator[Any]:
    """The dataset and all that it is made from."""
    waiting = [dataset]
    while waiting:
        part = waiting.pop()
        inner = getattr(part, "_dataset", None)  # of the adapters of tf.compat.v1
        if isinstance(inner, tf.data.Dataset):
            waiting.append(inner)
        elif hasattr(part, "_inputs") and hasattr(part, "_functions"):
            yield part
            waiting += part._inputs()


def _in_graph(graph: Any, unordered: Collection[str]) -> str | None:
    """Returns what leaves the order of elements to chance in a GraphDef, or in a function in it; None if nothing does.

    Args:
        graph: the GraphDef.
        unordered: the words of ops whose elements need not keep their order.
    """
    for nodes in (graph.node, *(function.node_def for function in graph.library.function)):
        constants = {node.name: node for node in nodes if node.op == "Const"}
        for node in nodes:
            if _order_of_node(node) in unordered:
                return f"{node.op} with deterministic=False"
            kind = node.op.partition("V")[0]
            seeds = node.input[_SEEDS[kind] :][:2] if kind in _SEEDS else []
            values = [constants.get(seed.partition(":")[0]) for seed in seeds]
            if values and all(value is not None and _is_zero(_constant(value)) for value in values):
                return f"{kind} without a seed"
    return None


def _constant(node: Any) -> Any:
    return tf.make_ndarray(node.attr["value"].tensor)


def _is_zero(seed: Any) -> bool:
    """True if a seed is known to be 0; two zeros stand for "choose one"."""
    value = tf.get_static_value(seed) if tf.is_tensor(seed) else seed
    return value is not None and int(value) == 0
