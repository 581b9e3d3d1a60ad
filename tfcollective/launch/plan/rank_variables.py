"""The ranks and sizes in a rank's environment, under the names that torchrun gave the field: pure."""

from __future__ import annotations

from collections.abc import Mapping

from tfcollective.topology import Placement

__all__ = ["rank_variables"]


def rank_variables(place: Placement, given: Mapping[str, str]) -> dict[str, str]:
    """``RANK``, ``WORLD_SIZE``, ``LOCAL_RANK`` and ``LOCAL_WORLD_SIZE``: scripts choose their GPU or their share of the
    data by them before they call ``init()``. Those of ``given``, what the user sets for the ranks, are left out.
    """
    words = {
        "RANK": place.rank,
        "WORLD_SIZE": place.size,
        "LOCAL_RANK": place.local_rank,
        "LOCAL_WORLD_SIZE": place.local_size,
    }
    return {word: str(value) for word, value in words.items() if word not in given}
