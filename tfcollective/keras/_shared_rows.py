"""Judges by the samples of all ranks whether an epoch was divided between them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfcollective.keras._row_sample import ROWS

_RANKS = 16  # that are compared with each other
_FEWEST = 16  # rows of which something can be said
_MOST = 0.8  # of its rows a rank may share with another one where each is given data of its own


@dataclass(frozen=True)
class Shared:
    """The rows that two ranks have both trained on.

    Attributes:
        ranks: the two.
        rows: the number of rows of the first one that are compared.
        found: the part of them that the second one has, too.
        excess: the part that is more than rows which the data have several times explain.
    """

    ranks: tuple[int, int]
    rows: int
    found: float
    excess: float


def of_own_data(samples: Sequence[Any]) -> list[Shared]:
    """The pairs of ranks that have trained on the same rows although each was given data of its own.

    Two ranks that draw rows at random from the same data share a part of them in one epoch, which is no mistake; only
    nearly all rows are.

    Args:
        samples: of all ranks, see ``RowSample.end``.
    """
    return [one for one in _pairs(samples) if one.excess >= _MOST]


def of_batches(samples: Sequence[Any]) -> list[Shared]:
    """The pairs of ranks, those that share most rows first, if ranks had other batches than the others, so that their
    slices share rows; none if each row was trained on by one rank.

    Args:
        samples: of all ranks, see ``RowSample.end``.
    """
    if _are_alike(samples):
        return []  # what they share are rows that the data have several times
    pairs = list(_pairs(samples))
    # Of two slices of batches in orders of their own, each row is in both with a probability of 1 / ranks.
    if not pairs or np.mean([one.excess for one in pairs]) < 0.5 / len(samples):
        return []
    return sorted(pairs, key=lambda one: -one.found)


def _are_alike(samples: Sequence[Any]) -> bool:
    batches = np.stack([one[ROWS:] for one in samples])
    compared = batches[:, (batches >= 0).all(axis=0)]
    return bool((compared == compared[:1]).all())


def _pairs(samples: Sequence[Any]) -> Iterable[Shared]:
    """Yields the pairs of which something can be said."""
    for first, second in itertools.combinations(range(min(len(samples), _RANKS)), 2):
        found = _shared((first, second), samples[first][:ROWS], samples[second][:ROWS])
        if found is not None:
            yield found


def _shared(ranks: tuple[int, int], mine: Any, theirs: Any) -> Shared | None:
    """Compares all rows whose hashes are larger than the smallest ones that were kept.

    If rows that the data have several times came to the ranks at random, a pair of equal rows is as often on two given
    ranks as on one of them. So such pairs within the ranks are subtracted from those between them.
    """
    beyond = max(mine.min(), theirs.min())
    (values, counts), (others, times) = (np.unique(one[one > beyond], return_counts=True) for one in (mine, theirs))
    fewest = min(counts.sum(), times.sum())
    if fewest < _FEWEST or any(one.sum() >= 2 * one.size for one in (counts, times)):
        return None  # too few, or rows that are equal by nature, such as one-hot numbers
    _, here, there = np.intersect1d(values, others, assume_unique=True, return_indices=True)
    between = (counts[here] * times[there]).sum()
    within = sum((one * (one - 1)).sum() / 2 for one in (counts, times))
    total = int(counts.sum())
    return Shared(ranks, total, float(counts[here].sum() / total), float((between - within) / fewest))
