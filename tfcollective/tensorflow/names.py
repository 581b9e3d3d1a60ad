"""Names by which ranks match their operations, equal on all ranks without any talk between them."""

from __future__ import annotations

import itertools
from typing import Any

import tensorflow as tf

from tfcollective import runtime
from tfcollective.tensorflow.plan import PlanNames

__all__ = ["operation_name", "plan_names"]


plan_names = PlanNames()
_eager_count = itertools.count()


def operation_name(name: str | None) -> str:
    """`name`, or one made from the place of the call.

    Inside a function it is the outermost function's name, the name scope and a count within the graph: tracing
    again, on one rank only, gives the same names. Eagerly it is a count of calls. All kinds of operation share the
    counts, so that ranks which call different things at the same place are told so.
    """
    if name is not None:
        return name
    if tf.executing_eagerly():
        return f"eager/{next(_eager_count)}"
    graph = tf.compat.v1.get_default_graph()
    return f"{_outermost_name(graph)}/{graph.unique_name('collective', mark_as_used=True)}"


def _outermost_name(graph: Any) -> str:
    """Name of the function that is being traced, seen through branches, loop bodies and nested functions (whose own
    names hold counters of the process); empty in a v1 graph."""
    name = ""
    while getattr(graph, "outer_graph", None) is not None:
        name = getattr(graph, "name", "")
        graph = graph.outer_graph
    return str(name)


def _new_world() -> None:
    global _eager_count
    _eager_count = itertools.count()  # plan names stay: functions that were traced hold them


runtime.on_shutdown(_new_world)
