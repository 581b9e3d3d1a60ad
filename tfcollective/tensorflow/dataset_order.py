"""Whether a ``tf.data`` pipeline gives its elements in the same order in every process.

Read from the pipeline's transformations and from the graphs of their functions, which may make datasets of their own
(``interleave``, ``flat_map``). TensorFlow has no public way to ask: where its objects are not as expected, nothing is
found.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

__all__ = ["left_to_chance"]

# Ops that draw random numbers, and the place of the first of their two seeds among their inputs.
_SEEDS = {"ShuffleDataset": 2, "ShuffleAndRepeatDataset": 2, "RandomDataset": 0}


def left_to_chance(dataset: Any) -> str | None:
    """What makes the order of the dataset's elements another one in each process; None if nothing is known to.

    That is a shuffle (also that of ``Dataset.list_files``), ``Dataset.random`` or ``sample_from_datasets`` without a
    seed, and parallel transformations that need not be deterministic. Elements that a ``map`` changes at random keep
    their places.
    """
    for part in _pipeline(dataset):
        name = type(part).__name__.strip("_")
        if _is_zero(getattr(part, "_seed", None)) and _is_zero(getattr(part, "_seed2", None)):
            return f"{name} without a seed"
        if name.startswith("Parallel") and "false" in (getattr(part, "_deterministic", None), _option(dataset)):
            return f"{name} with deterministic=False"
        for function in part._functions():
            found = _in_graph(function.function.graph.as_graph_def())
            if found is not None:
                return f"{found} without a seed in the function of {name}"
    return None


def _option(dataset: Any) -> str:
    """What the whole pipeline is asked for, in the word that its parts have for it."""
    return "false" if getattr(dataset.options(), "deterministic", None) is False else "default"


def _pipeline(dataset: Any) -> Iterator[Any]:
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


def _in_graph(graph: Any) -> str | None:
    """The first op of a GraphDef, or of a function in it, that draws random numbers without a seed."""
    for nodes in (graph.node, *(function.node_def for function in graph.library.function)):
        constants = {node.name: node for node in nodes if node.op == "Const"}
        for node in nodes:
            kind = node.op.partition("V")[0]
            seeds = node.input[_SEEDS[kind] :][:2] if kind in _SEEDS else []
            values = [constants.get(seed.partition(":")[0]) for seed in seeds]
            if values and all(value is not None and _is_zero(_constant(value)) for value in values):
                return str(kind)
    return None


def _constant(node: Any) -> Any:
    return tf.make_ndarray(node.attr["value"].tensor)


def _is_zero(seed: Any) -> bool:
    """Whether a seed is known to be 0; two zeros stand for "choose one"."""
    value = tf.get_static_value(seed) if tf.is_tensor(seed) else seed
    return value is not None and int(value) == 0
