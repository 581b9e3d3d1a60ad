"""Bucket plans: which gradients are reduced together, and in which order. Pure: no TensorFlow, no I/O.

Buckets are filled in the order in which gradients become ready: from the last layer to the first, or as the traced
function computes them; the first bucket is small so that reduction starts early, as in PyTorch's
DistributedDataParallel (Li et al., VLDB 2020). How large they are follows from what a bucket costs before its first
byte moves and from how fast bytes move.
"""

from __future__ import annotations

import hashlib
import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from tfcollective._runtime.communicator import Op

FIRST_BUCKET_BYTES = 1 << 20
#: The fixed cost of a bucket is at most one part in so many of its time.
_SHARE = 16
#: Two ops in TensorFlow's executor and the hand-over to the progress thread.
_OPS_S = 50e-6
_SMALLEST, _LARGEST = 256 << 10, 32 << 20
_FIRST_IS_A_QUARTER = 4


@dataclass(frozen=True)
class GradientSpec:
    """The facts about a gradient that the plan needs.

    Attributes:
        position: of its variable among those of the step, the same on all ranks.
        name: of its variable, for messages: Keras numbers names, so ranks may have others.
        shape: of its variable; that of a gradient depends on what the trace knows of the batch. None stands for a
            dimension that is not known before the step runs.
        dtype: name of the element type as it is sent.
        itemsize: bytes of one element.
        group: gradients of one group (>= 0) share a bucket whatever its size; None: planned by size.
    """

    position: int
    name: str
    shape: tuple[int | None, ...]
    dtype: str
    itemsize: int
    group: int | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of one gradient; an unknown dimension counts as one."""
        elements = 1
        for dimension in self.shape:
            elements *= 1 if dimension is None else dimension
        return elements * self.itemsize


@dataclass(frozen=True)
class Bucket:
    """Gradients of one dtype that are reduced together.

    Attributes:
        dtype: their element type.
        members: their places in the list of gradients, in the order in which they become ready.
    """

    dtype: str
    members: tuple[int, ...]


@dataclass(frozen=True)
class Reduction:
    """The way gradients are combined: inputs times `prescale`, `op`, results times `postscale`."""

    op: Op
    prescale: float = 1.0
    postscale: float = 1.0


@dataclass(frozen=True)
class BucketPlan:
    """The fixed list of buckets of one training step.

    Attributes:
        name: matched between ranks.
        signature: see :func:`signature`.
        buckets: in the order in which they are started.
        reduction: the same for all buckets.
        process_set_id: whose ranks take part.
    """

    name: str
    signature: str
    buckets: tuple[Bucket, ...]
    reduction: Reduction
    process_set_id: int = 0


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
    """The cost of moving a bucket's bytes.

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


def plan_buckets(
    gradients: Sequence[GradientSpec], sizes: BucketSizes, order: Sequence[int] | None = None
) -> tuple[Bucket, ...]:
    """Buckets in the order in which they become full while gradients become ready.

    A bucket holds one dtype and at most as many bytes as `sizes` says, unless a single gradient is larger: that one has
    a bucket of its own, or one with what would be too small without it. `order` holds the gradients' places, the first
    to be ready in front; from last to first if None.
    """
    ready = reversed(range(len(gradients))) if order is None else order
    planner = _Planner(sizes)
    for index in ready:
        planner.add(index, gradients[index])
    return planner.finish()


class _Planner:
    """Fills one open bucket a (dtype, group) at a time."""

    def __init__(self, sizes: BucketSizes) -> None:
        self._sizes = sizes
        self._open: dict[tuple[str, int | None], list[int]] = {}
        self._bytes: dict[tuple[str, int | None], int] = {}
        self._closed: list[Bucket] = []
        self._turns: dict[int, int] = {}

    def add(self, index: int, gradient: GradientSpec) -> None:
        key = (gradient.dtype, gradient.group)
        limit = self._sizes.other if self._closed else self._sizes.first
        held = self._bytes.get(key, 0)
        if held and held >= self._sizes.least and gradient.group is None and held + gradient.nbytes > limit:
            self._close(key)
        self._turns[index] = len(self._turns)
        self._open.setdefault(key, []).append(index)
        self._bytes[key] = self._bytes.get(key, 0) + gradient.nbytes

    def finish(self) -> tuple[Bucket, ...]:
        for key in list(self._open):
            self._close(key)
        # Ready when the last member is: started in that order, whatever the order of closing.
        return tuple(sorted(self._closed, key=lambda bucket: self._turns[bucket.members[-1]]))

    def _close(self, key: tuple[str, int | None]) -> None:
        self._closed.append(Bucket(key[0], tuple(self._open.pop(key))))
        del self._bytes[key]


def signature(gradients: Sequence[GradientSpec], buckets: Sequence[Bucket], reduction: Reduction) -> str:
    """Returns what ranks must agree on before they run a plan: one line a gradient, in bucket order. The variable's
    name, after a tab, is shown where they disagree, but is not compared.
    """
    scales = f"{reduction.op.name.lower()} prescale={reduction.prescale!r} postscale={reduction.postscale!r}"
    lines = []
    for number, bucket in enumerate(buckets):
        for index in bucket.members:
            gradient = gradients[index]
            shape = ",".join("?" if dimension is None else str(dimension) for dimension in gradient.shape)
            lines.append(
                f"bucket {number}: variable {gradient.position} [{shape}] {gradient.dtype} {scales}\t({gradient.name})"
            )
    return "\n".join(lines)


class PlanNames:
    """Names plans so that all ranks give a plan the same name without talking: scope, and the ordinal of its content
    among the distinct contents that this scope has seen. Tracing a function again finds the name again. Contents are
    compared within this process only, so they may hold variables' names."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: dict[str, dict[bytes, int]] = {}  # digests: contents of large models are long

    def name(self, scope: str, content: str) -> str:
        """The name of the plan with this content in this scope."""
        digest = hashlib.sha256(content.encode()).digest()
        with self._lock:
            contents = self._seen.setdefault(scope, {})
            return f"{scope}#{contents.setdefault(digest, len(contents))}"
