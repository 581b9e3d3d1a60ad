"""Medians, spreads and paired ratios: pure. Machines are noisy, so nothing here is a mean."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tfcollective._base.errors import InvalidArgumentError
from tfcollective_bench.model import Sample

__all__ = ["Summary", "medians_by_round", "paired_ratio", "percentile", "summarise"]


@dataclass(frozen=True)
class Summary:
    """Many values in few. `p10` to `p90` is the spread."""

    count: int
    minimum: float
    p10: float
    median: float
    p90: float
    p99: float
    maximum: float


def percentile(values: Sequence[float], percent: float) -> float:
    """The value below which `percent` (0 to 100) of the values lie, interpolated between the two neighbours.

    Raises:
        InvalidArgumentError: no values, or a percentage outside 0 to 100.
    """
    if not values:
        raise InvalidArgumentError("percentile: there are no values")
    if not 0 <= percent <= 100:
        raise InvalidArgumentError(f"percentile: expected 0 to 100, got {percent}")
    ordered = sorted(values)
    position = (len(ordered) - 1) * percent / 100
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def summarise(values: Sequence[float]) -> Summary:
    """The summary of at least one value."""
    return Summary(
        count=len(values),
        minimum=percentile(values, 0),
        p10=percentile(values, 10),
        median=percentile(values, 50),
        p90=percentile(values, 90),
        p99=percentile(values, 99),
        maximum=percentile(values, 100),
    )


def medians_by_round(samples: Iterable[Sample]) -> dict[int, float]:
    """Round -> median of all values measured in it."""
    values: dict[int, list[float]] = {}
    for sample in samples:
        values.setdefault(sample.round, []).extend(sample.values)
    return {number: statistics.median(found) for number, found in sorted(values.items()) if found}


def paired_ratio(numerator: Mapping[int, float], denominator: Mapping[int, float]) -> Summary | None:
    """The ratios of the medians, round by round, of the rounds that both have; None if there is none.

    Pairs ran next to each other, so that a slow minute of the machine slows both and cancels out.
    """
    both = [number for number in numerator if number in denominator and denominator[number] > 0]
    return summarise([numerator[number] / denominator[number] for number in both]) if both else None
