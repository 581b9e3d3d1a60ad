"""Evaluation and prediction by all ranks, for scripts that divide their training by hand."""

from __future__ import annotations

from typing import Any, Literal

from tfcollective.keras._parallel import mode
from tfcollective.keras._parallel.predictions import Wanted, wanting


def evaluate(model: Any, x: Any = None, y: Any = None, **options: Any) -> Any:
    """The result that ``model.evaluate`` has in one process, in a fraction of the time; all ranks call it.

    Each rank evaluates every ``size``-th batch, whole, and none if there are fewer batches than ranks. What metrics
    have counted is added up once, at the end: exactly where it is whole numbers, else up to rounding.

    Args:
        model: compiled; the same on all ranks.
        x: the data, all of it on all ranks: as for ``model.evaluate``.
        y: the targets, where `x` is arrays.
        **options: of ``model.evaluate``, for example ``batch_size`` and ``return_dict``.

    Returns:
        What ``model.evaluate`` returns, the same on all ranks.

    Raises:
        UnsupportedError: a metric's states cannot be merged; names it.
    """
    with mode.divided():
        return model.evaluate(x, y, **options)


def predict(
    model: Any,
    x: Any,
    *,
    gather: Literal["all", "rank0", "none"] = "all",
    memory: int = 1 << 30,
    **options: Any,
) -> Any:
    """The predictions that ``model.predict`` makes in one process, in a fraction of the time; all ranks call it.

    Each rank predicts every ``size``-th batch. A rank holds the rows of its own batches and those that it returns, each
    of them in memory up to a bound, or else in a temporary file without a name, in the directory that ``TMPDIR`` says;
    its room is free again as soon as the arrays are deleted. Beside them, up to 64 MiB of rows travel at once, or one
    batch of each rank. Strings are always in memory.

    Args:
        model: the same on all ranks.
        x: the data, all of it on all ranks: as for ``model.predict``.
        gather: what is returned: "all": all rows on all ranks; "rank0": all rows on rank 0, None on the others; "none":
            on each rank the rows of its own batches, of which rank 0 has the first, rank 1 the second, and so on.
        memory: the bound in bytes. One rank alone keeps all in memory.
        **options: of ``model.predict``, for example ``batch_size``.

    Returns:
        Arrays [rows, ...] in the structure of the model's outputs, in the order of the data. Those in files are
        ``numpy.memmap``.

    Raises:
        InvalidArgumentError: `gather` or `memory` is not as described.
        UnsupportedError: predictions that are ragged or sparse, or whose shapes differ from batch to batch.
    """
    with mode.divided(), wanting(Wanted(gather, memory)):
        return model.predict(x, **options)
