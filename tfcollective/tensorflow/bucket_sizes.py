"""How large buckets are: by what a bucket costs before its first byte moves and by how fast bytes move. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

FIRST_BUCKET_BYTES = 1 << 20
#: Of a bucket's time, at most one part in so many is what it costs whatever its size.
_SHARE = 16
#: Two ops in TensorFlow's executor and the hand-over to the progress thread.
_OPS_S = 50e-6
_SMALLEST, _LARGEST = 256 << 10, 32 << 20
_FIRST_IS_A_QUARTER = 4


@dataclass(frozen=True)
class BucketSizes:
    """The limits of a plan, in bytes.

    Attributes:
        first: of the first bucket; small, so that reduction starts early.
        other: of all others.
        least: what does not come to this many bytes goes with the next gradient, however large that is.
    """

    first: int
    other: int
    least: int = 0


@dataclass(frozen=True)
class LinkCost:
    """What moves a bucket's bytes.

    Attributes:
        start_s: seconds that a bucket takes whatever its size.
        bytes_per_s: of a bucket, from its start to its end.
    """

    start_s: float
    bytes_per_s: float


#: Ranks that share memory: every byte is read and written a few times by the processor.
SHARED_MEMORY = LinkCost(start_s=_OPS_S, bytes_per_s=5e9)


def fixed_sizes(limit: int) -> BucketSizes:
    """The size that a setting asks for."""
    return BucketSizes(first=min(FIRST_BUCKET_BYTES, limit), other=limit)


def sizes_for(cost: LinkCost) -> BucketSizes:
    """Buckets large enough that their fixed cost hardly counts, and no larger: what the last one still moves when the
    gradients are all there is hidden behind nothing. What moves in less time than a bucket of its own costs waits."""
    limit = min(max(int(_SHARE * cost.start_s * cost.bytes_per_s), _SMALLEST), _LARGEST)
    first = min(FIRST_BUCKET_BYTES, limit // _FIRST_IS_A_QUARTER)
    return BucketSizes(first=first, other=limit, least=limit // _SHARE)


def sizes_for_network(size: int, latency_s: float, bytes_per_s: float) -> BucketSizes:
    """Buckets of an all-reduce over `size` ranks and a network: 2 ceil(lg p) messages one after the other and 2 (p-1)/p
    of the bytes. Without a latency or bandwidth nothing was measured: as for shared memory."""
    if latency_s <= 0 or bytes_per_s <= 0 or size < 2:
        return sizes_for(SHARED_MEMORY)
    messages = 2 * math.ceil(math.log2(size))
    return sizes_for(LinkCost(_OPS_S + messages * latency_s, bytes_per_s * size / (2 * (size - 1))))
