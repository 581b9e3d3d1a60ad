"""The sizes to measure, and how often. Pure; standard library only, because external environments import it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["CACHES", "Point", "iterations_for", "make_points"]

CACHES = ("hot", "cold")
_FULL_BYTES = 256 << 10
_FEWEST = 8
_MOST_COLD = 50


@dataclass(frozen=True)
class Point:
    """A size to measure: its bytes, the state of the caches (``hot``: inputs just written; ``cold``: emptied since),
    and the number of calls."""

    cache: str
    bytes: int
    iterations: int

    def __str__(self) -> str:
        return f"{self.cache}:{self.bytes}:{self.iterations}"

    @classmethod
    def parse(cls, text: str) -> Point:
        """Reads what ``str`` writes; ValueError otherwise."""
        cache, size, iterations = text.split(":")
        if cache not in CACHES:
            raise ValueError(f"not one of {', '.join(CACHES)}: {cache!r}")
        return cls(cache, int(size), int(iterations))


def iterations_for(size: int, base: int, cache: str) -> int:
    """Returns how often to repeat `size` bytes when small sizes are repeated `base` times: large ones take longer and
    vary less; emptying the caches takes longer than most of them."""
    count = max(_FEWEST, min(base, base * _FULL_BYTES // size))
    return min(count, _MOST_COLD) if cache == "cold" else count


def make_points(sizes: Sequence[int], caches: Sequence[str], base: int) -> tuple[Point, ...]:
    """Returns all sizes in order, hot before cold."""
    return tuple(Point(cache, size, iterations_for(size, base, cache)) for size in sizes for cache in caches)
