"""The targets of the benchmarks, as data, and whether samples reach them: pure.

A target compares two sides by the medians of the rounds that both ran in. Where it spans several rows (sizes), each is
compared and the worst decides.

The cells that targets look at: all-reduce samples have ``bytes``, ``ranks``, ``cache``, ``transport`` (ours) and, in
namespaces, ``link``; training samples have ``model``, ``ranks``, ``link`` and ``view``, their metric is ``throughput``.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tfcollective_bench.model import Cell, Sample, select
from tfcollective_bench.statistics import Summary, medians_by_round, paired_ratio, summarise
from tfcollective_bench.units import bytes_text
from tfcollective_bench.wire import PAYLOAD, bare_ring_seconds, ring_seconds

__all__ = ["ALLREDUCE", "TARGETS", "TRAINING", "Outcome", "Side", "Target", "evaluate"]

_K, _M = 1 << 10, 1 << 20


@dataclass(frozen=True)
class Side:
    """A side of a comparison: the first of these runners that has samples in rows with these cells."""

    runners: tuple[str, ...]
    row: Mapping[str, Cell] = field(default_factory=dict)


@dataclass(frozen=True)
class Target:
    """A row of the table.

    Attributes:
        work: what is done.
        against: whom or what it is compared with.
        ours: our side.
        theirs: the other; None: the bound of the link, nothing but the bytes of a ring and their headers on the wire.
        metric: ``latency`` (less is better) or ``throughput`` (more is better).
        must: the least ratio, ours better than theirs so many times; None when only the aim counts.
        aim: the ratio to aim at; None when there is none.
        bytes_from: the smallest and ...
        bytes_to: ... the largest size that it holds for; 0 and 0 where rows have no size.
        percent: whether people read the ratio as per cent.
        floor_us: instead of a ratio: how many microseconds above the measured call overhead is aimed at.
        within_spread: whether the must is met when the 90th percentile of the rounds reaches it ("no measurable ...").
        step_bytes: of the gradients of a training step that is compared with the bound of the link.
    """

    work: str
    against: str
    ours: Side
    theirs: Side | None
    must: float | None
    aim: float | None
    metric: str = "latency"
    bytes_from: int = 0
    bytes_to: int = 0
    percent: bool = False
    floor_us: float | None = None
    within_spread: bool = False
    step_bytes: int = 0


@dataclass(frozen=True)
class Outcome:
    """The result of samples for a target. `ratio` is that of the worst row, `where` names it; None: not measured, and
    `where` says why. With `floor_us`, `ratio` holds the microseconds above the call overhead."""

    target: Target
    ratio: Summary | None
    where: str
    sides: str = ""

    @property
    def met(self) -> bool | None:
        """True if the must is met; None when it was not measured or there is none."""
        if self.ratio is None or self.target.must is None:
            return None
        return (self.ratio.p90 if self.target.within_spread else self.ratio.median) >= self.target.must

    @property
    def aimed(self) -> bool | None:
        """True if the aim is reached; None when it was not measured or there is none."""
        if self.ratio is None:
            return None
        if self.target.floor_us is not None:
            return self.ratio.median <= self.target.floor_us
        return None if self.target.aim is None else self.ratio.median >= self.target.aim


_C, _OP = ("c", "ctypes"), ("op",)
_MPI, _HOROVOD = ("openmpi-c", "openmpi"), ("horovod",)


def _ours(runners: tuple[str, ...], ranks: int, transport: str = "auto") -> Side:
    return Side(runners, {"ranks": ranks, "transport": transport, "cache": "hot"})


def _theirs(runners: tuple[str, ...], ranks: int) -> Side:
    return Side(runners, {"ranks": ranks, "cache": "hot"})


def _mpi(work: str, ranks: int, least: int, most: int, must: float, aim: float | None) -> Target:
    return Target(work, "Open MPI", _ours(_C, ranks), _theirs(_MPI, ranks), must, aim, bytes_from=least, bytes_to=most)


def _horovod(work: str, ranks: int, least: int, most: int, must: float, aim: float | None, transport: str) -> Target:
    sides = (_ours(_OP, ranks, transport), _theirs(_HOROVOD, ranks))
    return Target(work, "Horovod-Gloo", *sides, must, aim, bytes_from=least, bytes_to=most)


ALLREDUCE: tuple[Target, ...] = (
    _mpi("64 MiB float32, 2 ranks, C API", 2, 64 * _M, 64 * _M, 3, 4),
    _mpi("4 MiB and 16 MiB, 2 ranks, C API", 2, 4 * _M, 16 * _M, 2, 3),
    _mpi("64 KiB - 1 MiB, 2 ranks, C API", 2, 64 * _K, _M, 1.5, 2.2),
    _mpi("4 B - 16 KiB, 2 ranks, C API", 2, 4, 16 * _K, 1, 2),
    _mpi("64 KiB - 4 MiB, 4 ranks, C API", 4, 64 * _K, 4 * _M, 1.2, 2),
    _mpi("64 MiB, 4 ranks, C API", 4, 64 * _M, 64 * _M, 2.5, 3.5),
    _mpi("64 KiB - 4 MiB, 8 ranks, C API", 8, 64 * _K, 4 * _M, 1.2, 2),
    _mpi("64 MiB, 8 ranks, C API", 8, 64 * _M, 64 * _M, 2.5, 3.5),
    _horovod("every size, 4 ranks, op in tf.function", 4, 4, 64 * _M, 1, None, "auto"),
    _horovod("every size, 8 ranks, op in tf.function", 8, 4, 64 * _M, 1, None, "auto"),
    _horovod("1 MiB - 64 MiB, 2 ranks, op in tf.function", 2, _M, 64 * _M, 4, 6, "auto"),
    _horovod("4 B - 16 KiB, 2 ranks, op in tf.function", 2, 4, 16 * _K, 5, None, "auto"),
    Target(
        "4 B - 16 KiB, 2 ranks, op in tf.function",
        "the tf.function call floor",
        _ours(_OP, 2),
        None,
        None,
        None,
        bytes_from=4,
        bytes_to=16 * _K,
        floor_us=10,
    ),
    _horovod("TCP only, every size, 2 ranks, op in tf.function", 2, 4, 64 * _M, 1.3, 2, "tcp"),
    Target(
        "4 namespaces at 1 Gbit/s, 8 MiB and more",
        "the ring bound 2(p-1)/p n/B, less headers",
        Side(_C, {"ranks": 4, "link": "1gbit"}),
        None,
        0.95,
        0.98,
        bytes_from=8 * _M,
        bytes_to=256 * _M,
        percent=True,
    ),
)


_BATCH = 64  # of every process, in all models
_KERAS_2 = ("ours-keras2", "ours")  # against those that need TensorFlow 2.15, the same TensorFlow if it is there
_TESTBED_WORK = "MLP 784-1024-1024-10, 4 namespaces at 1 Gbit/s"


def _mlp_bytes(hidden: int) -> int:
    """Returns the bytes of the gradients of MLP 784-hidden-hidden-10, float32."""
    return 4 * ((784 + 1) * hidden + (hidden + 1) * hidden + (hidden + 1) * 10)


def _cells(model: str, ranks: int, link: str) -> dict[str, Cell]:
    return {"model": model, "ranks": ranks, "link": link, "view": "processes"}


def _alone(work: str, model: str, must: float, aim: float) -> Target:
    cells = _cells(model, 2, "loopback")
    sides = Side(("ours", "ours-keras2"), cells), Side(("unconnected", "unconnected-keras2"), cells)
    return Target(work, "two unconnected processes", *sides, must, aim, "throughput", percent=True)


def _unmodified(work: str, model: str) -> Target:
    cells = _cells(model, 2, "loopback")
    mine, by_hand = Side(("ours-unmodified",), cells), Side(("ours",), cells)
    return Target(work, "a script made for several processes", mine, by_hand, 0.98, None, "throughput", percent=True)


def _mlp(hidden: int, musts: Sequence[float], aims: Sequence[float]) -> Iterator[Target]:
    work = f"MLP 784-{hidden}-{hidden}-10, 2 workers on 2 cores"
    cells = _cells(f"mlp{hidden}", 2, "loopback")
    names = (("Horovod", "horovod"), ("MultiWorkerMirroredStrategy", "mwms"), ("parameter servers", "ps"))
    for (against, runner), must, aim in zip(names, musts, aims, strict=True):
        yield Target(work, against, Side(_KERAS_2, cells), Side((runner,), cells), must, aim, "throughput")
    yield _alone(work, f"mlp{hidden}", 0.8, 0.9)


def _testbed() -> Iterator[Target]:
    cells = _cells("mlp1024", 4, "1gbit")
    mwms, servers = Side(("mwms",), cells), Side(("ps",), cells)
    strategy = "MultiWorkerMirroredStrategy"
    yield Target(_TESTBED_WORK, strategy, Side(_KERAS_2, cells), mwms, 1.1, None, "throughput")
    yield Target(_TESTBED_WORK, "parameter servers", Side(_KERAS_2, cells), servers, 3, None, "throughput")
    yield Target(
        _TESTBED_WORK,
        "the ring bound of the wire, less headers",
        Side(("ours", "ours-keras2"), cells),
        None,
        0.9,
        0.95,
        "throughput",
        percent=True,
        step_bytes=_mlp_bytes(1024),
    )
    yield Target(f"{_TESTBED_WORK}, bf16 wire", strategy, Side(("ours-bf16",), cells), mwms, None, 1.9, "throughput")


TRAINING: tuple[Target, ...] = (
    *_mlp(1024, (2.5, 2, 3.5), (3.2, 2.6, 4.5)),
    *_mlp(2048, (2, 2, 3.5), (2.5, 2.5, 4.3)),
    *_testbed(),
    Target(
        "MLP 784-1024-1024-10, size 1",
        "plain Keras, within the spread",
        Side(("ours",), _cells("mlp1024", 1, "loopback")),
        Side(("single",), _cells("mlp1024", 1, "loopback")),
        1,
        None,
        "throughput",
        percent=True,
        within_spread=True,
    ),
    _alone("convolutional network, 2 workers on 2 cores", "convnet", 0.97, 0.99),
    _unmodified("unmodified script, MLP 784-1024-1024-10, 2 workers on 2 cores", "mlp1024"),
    _unmodified("unmodified script, convolutional network, 2 workers on 2 cores", "convnet"),
)

TARGETS: tuple[Target, ...] = ALLREDUCE + TRAINING


def evaluate(target: Target, samples: Sequence[Sample]) -> Outcome:
    """Compares the sides of a target in these samples."""
    mine = _side(target.ours, target, samples)
    if not mine:
        return Outcome(target, None, f"{_names(target.ours)} has not run")
    if target.floor_us is not None:
        return _above_floor(target, mine, samples)
    if target.theirs is None:
        return _against_bound(target, mine)
    others = _side(target.theirs, target, samples)
    if not others:
        return Outcome(target, None, f"{_names(target.theirs)} has not run")
    found = {}
    for size in mine:
        ratio = _ratio(target, mine[size], others[size]) if size in others else None
        if ratio is not None:
            found[size] = ratio
    sides = f"{_runner(mine)} / {_runner(others)}"
    return _worst(target, found, sides) if found else Outcome(target, None, "no round and row that both have", sides)


def _names(side: Side) -> str:
    return " or ".join(side.runners)


def _runner(rows: Mapping[int, Sequence[Sample]]) -> str:
    return next(iter(rows.values()))[0].runner


def _side(side: Side, target: Target, samples: Sequence[Sample]) -> dict[int, list[Sample]]:
    """Returns, by size (0 if rows have none), the samples of the first runner that has any. If a runner has several
    rows of one size (parameter servers: one for every number of servers), its best."""
    for runner in side.runners:
        rows: dict[tuple[int, str], list[Sample]] = {}
        for sample in select(samples, runner=runner, metric=target.metric, **side.row):
            size = int(sample.row.get("bytes", 0))
            in_other_net = "link" in sample.row and "bytes" in sample.row and "link" not in side.row
            if target.bytes_from <= size <= target.bytes_to and not in_other_net:
                rows.setdefault((size, repr(sorted(sample.row.items()))), []).append(sample)
        if rows:
            return {size: _best(target, rows, size) for size in sorted({size for size, _ in rows})}
    return {}


def _best(target: Target, rows: Mapping[tuple[int, str], list[Sample]], size: int) -> list[Sample]:
    choice = [found for (of_size, _), found in rows.items() if of_size == size]
    pick = min if target.metric == "latency" else max
    return pick(choice, key=lambda found: statistics.median(value for sample in found for value in sample.values))


def _ratio(target: Target, mine: Sequence[Sample], others: Sequence[Sample]) -> Summary | None:
    """Returns how many times better we are, in the rounds that both have."""
    ours, theirs = medians_by_round(mine), medians_by_round(others)
    return paired_ratio(theirs, ours) if target.metric == "latency" else paired_ratio(ours, theirs)


def _above_floor(target: Target, mine: Mapping[int, Sequence[Sample]], samples: Sequence[Sample]) -> Outcome:
    """Microseconds above the overhead that was measured in the same round."""
    found = {}
    for size, rows in mine.items():
        latency = medians_by_round(rows)
        overhead = medians_by_round(select(samples, runner=rows[0].runner, metric="overhead", **rows[0].row))
        both = [(latency[number] - overhead[number]) * 1e6 for number in latency if number in overhead]
        if both:
            found[size] = summarise(both)
    if not found:
        return Outcome(target, None, "no call overhead was measured")
    worst = max(found, key=lambda size: found[size].median)
    return Outcome(target, found[worst], f"worst at {bytes_text(worst)}", _runner(mine))


def _against_bound(target: Target, mine: Mapping[int, Sequence[Sample]]) -> Outcome:
    """The part of the link's rate, less headers, that the bytes of a ring all-reduce get; says that of the bare rate,
    too."""
    outcome = _worst(target, {size: _of_bound(target, size, rows) for size, rows in mine.items()}, _runner(mine))
    size = min(mine, key=lambda size: _of_bound(target, size, mine[size]).median)
    bare = _of_bound(target, size, mine[size], bare_ring_seconds).median
    said = f"of the bare rate {bare * 100:.1f} %, of which headers leave {PAYLOAD * 100:.1f} %"
    return replace(outcome, where=f"{outcome.where}; {said}" if outcome.where else said)


def _of_bound(
    target: Target, size: int, samples: Sequence[Sample], bound: Callable[[int, int, str], float] = ring_seconds
) -> Summary:
    row = samples[0].row
    ranks = int(row["ranks"])
    seconds = bound(ranks, target.step_bytes or size, str(row["link"]))
    medians = medians_by_round(samples).values()
    if target.metric == "latency":
        return summarise([seconds / median for median in medians])
    return summarise([median / (ranks * _BATCH / seconds) for median in medians])


def _worst(target: Target, found: Mapping[int, Summary], sides: str) -> Outcome:
    size = min(found, key=lambda size: found[size].median)
    return Outcome(target, found[size], f"worst at {bytes_text(size)}" if size else "", sides)
