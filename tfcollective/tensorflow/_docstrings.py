"""Completes docstrings by the arguments that mean the same in several functions.

The documentation site is built where TensorFlow is not installed, and reads the source without running it: see
tools/site_extension.py, which loads this module by itself. So it imports nothing of tfcollective or TensorFlow.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

_Function = TypeVar("_Function", bound=Callable[..., Any])

#: The decorators that complete docstrings: :func:`documented`, and those of ``border`` that apply it.
COMPLETING = ("documented", "collective", "collective_of_objects")

_MEANINGS = {
    "compression": "how dense tensors travel, of ``Compression``; without effect on gradients with Adasum.",
    "op": "Average (default), Sum, Min, Max or Product.",
    "prescale_factor": "factor applied to the inputs.",
    "postscale_factor": "factor applied to the result.",
    "root_rank": "whose values count; a rank of the world, also with a process set.",
    "name": "matches the operation between ranks; made from the place of the call if None.",
    "ignore_name_scope": "leave the name scope out of a name that is made from the place of the call.",
    "process_set": "whose ranks take part; all if None.",
    "sparse_as_dense": "turn IndexedSlices into dense tensors first.",
    "gradient_predivide_factor": "divide by it before the sum, multiply by it after; Average only.",
    "backward_passes_per_step": "how many passes are added up in this process for one reduction and one update.",
    "average_aggregated_gradients": "take the mean of those passes instead of their sum.",
    "groups": "the number of buckets, or lists of variables that share one; None: buckets are made by size.",
    "local_layers": "a layer or a list of them whose gradients stay each rank's own; they may be built later.",
    "scale_local_gradients": "divide the gradients of local variables by the number of ranks, also with Sum.",
}


def documented(function: _Function) -> _Function:
    """Returns the function, with its docstring :func:`completed`."""
    function.__doc__ = completed(inspect.getdoc(function) or "", inspect.signature(function).parameters)
    return function


def completed(docstring: str, parameters: Iterable[str]) -> str:
    """Returns the docstring with a line for each parameter that its section ``Args`` leaves out and ``_MEANINGS`` has.

    Args:
        docstring: without indentation; one without a section ``Args`` stays as it is.
        parameters: the names in the function's signature.
    """
    head, _, rest = docstring.partition("\nArgs:\n")
    own, gap, more = rest.partition("\n\n")
    missing = [name for name in parameters if f"    {name}: " not in own and name in _MEANINGS]
    if not own or not missing:
        return docstring
    lines = [f"    {name}: {_MEANINGS[name]}" for name in missing]
    return "\n".join((f"{head}\nArgs:", own.rstrip(), *lines)) + gap + more
