"""Exchanges of what is too much to be sent at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

_BYTES = 64 << 20  # of all ranks, in one round


def rounds(sizes: Sequence[Sequence[int]]) -> Iterator[tuple[int, int]]:
    """Yields the turns (first, end) that are exchanged at once: at least one, more of them up to a bound.

    Args:
        sizes: of each rank, the bytes of each of its batches.
    """
    begin = total = 0
    turns = max(map(len, sizes))
    for turn in range(turns):
        more = sum(one[turn] for one in sizes if turn < len(one))
        if turn > begin and total + more > _BYTES:
            yield begin, turn
            begin, total = turn, 0
        total += more
    if turns:
        yield begin, turns
