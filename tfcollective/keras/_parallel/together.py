"""Evaluation and prediction by all ranks, for scripts that divide their training by hand."""

from __future__ import annotations

from typing import Any

from tfcollective.keras._parallel import mode


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


def predict(model: Any, x: Any, **options: Any) -> Any:
    """The predictions that ``model.predict`` makes in one process, in a fraction of the time; all ranks call it.

    Each rank predicts every ``size``-th batch. All predictions have to fit into the memory of each rank, twice.

    Args:
        model: the same on all ranks.
        x: the data, all of it on all ranks: as for ``model.predict``.
        **options: of ``model.predict``, for example ``batch_size``.

    Returns:
        Arrays [rows, ...] in the structure of the model's outputs, all rows on all ranks, in the order of the data.

    Raises:
        UnsupportedError: predictions that are ragged or sparse.
    """
    with mode.divided():
        return model.predict(x, **options)
