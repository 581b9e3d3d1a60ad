"""All-reduce on GPUs: nccl-tests' columns, and the overhead of tfcollective's call over NCCL's in the same process."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tfcollective._base.errors import UnsupportedError
from tfcollective._runtime.communicator import Communicator, Sum

__all__ = ["TYPES", "CupyDevice", "Device", "DeviceRow", "device_table", "measure_device", "overheads"]

TYPES = ("float16", "float32", "float64", "int32", "int64")
MOST_OVERHEAD_S = 10e-6
MOST_OVERHEAD = 0.02  # from LARGE on
LARGE = 64 << 20
_SMALL = 1 << 20
_FEW_CALLS = 10
_INSTALL = "pip install cupy-cuda12x or cupy-cuda13x, whichever the driver is for, and nvidia-nccl-cu12 or -cu13"


class Device(Protocol):
    """The GPU operations that the measurement needs; :class:`CupyDevice` implements them with CuPy."""

    title: str

    def full(self, count: int, dtype: str, value: float) -> Any:
        """An array on the GPU."""

    def wrong(self, array: Any, value: float) -> int:
        """Returns the number of its elements that differ from the expected value."""

    def synchronize(self) -> None:
        """Returns when the GPU has done what it was given."""

    def nccl(self, world: Communicator) -> Callable[[Any, Any], None]:
        """NCCL's own sum over the ranks of `world`, from the first array into the second, on the same stream."""


class CupyDevice:
    """The current GPU, by CuPy.

    Raises:
        UnsupportedError: there is no CuPy or no GPU; says what to install.
    """

    def __init__(self) -> None:
        try:
            import cupy
            from cupy.cuda import nccl
        except ImportError as error:
            raise UnsupportedError(f"--device cuda needs CuPy with NCCL ({error}): {_INSTALL}") from error
        if not getattr(nccl, "available", True):  # CuPy's module is there without the library, too, and empty
            raise UnsupportedError(f"--device cuda needs CuPy with NCCL (CuPy has not found it): {_INSTALL}")
        try:
            number = cupy.cuda.Device()
            name = cupy.cuda.runtime.getDeviceProperties(number.id)["name"].decode()
        except cupy.cuda.runtime.CUDARuntimeError as error:
            raise UnsupportedError(f"--device cuda needs a GPU and its driver: {error}") from error
        self._cupy, self._nccl = cupy, nccl
        self.title = f"GPU {number.id} ({name}), NCCL {nccl.get_version()} from CuPy {cupy.__version__}"

    def full(self, count: int, dtype: str, value: float) -> Any:
        """See :class:`Device`."""
        return self._cupy.full(count, value, dtype=dtype)

    def wrong(self, array: Any, value: float) -> int:
        """See :class:`Device`."""
        return int((array != value).sum())

    def synchronize(self) -> None:
        """See :class:`Device`."""
        self._cupy.cuda.get_current_stream().synchronize()

    def nccl(self, world: Communicator) -> Callable[[Any, Any], None]:
        """See :class:`Device`."""
        import numpy as np

        # A tuple of signed bytes; from CuPy 14 on, bytes.
        made = self._nccl.get_unique_id()
        numbers = world.broadcast(np.array(list(made), dtype=np.int64), 0, name="bench/id")
        shared = type(made)(int(byte) for byte in numbers)
        direct = self._nccl.NcclCommunicator(world.size, shared, world.rank)
        types = {name: getattr(self._nccl, f"NCCL_{name.upper()}") for name in TYPES}

        def call(source: Any, target: Any) -> None:
            stream = self._cupy.cuda.get_current_stream().ptr
            kind = types[str(source.dtype)]
            direct.allReduce(source.data.ptr, target.data.ptr, source.size, kind, self._nccl.NCCL_SUM, stream)

        return call


@dataclass(frozen=True)
class DeviceRow:
    """The figures of one size: seconds of a call (medians over the rounds) and bytes per second, ours and NCCL's.

    Attributes:
        nbytes: of the array.
        count: its elements.
        out_of_place: ours, with another array for the result.
        in_place: ours, into the array itself.
        nccl: NCCL's, called directly, out of place.
        wrong: elements of our results that are not the sum.
        ranks: of the world.
    """

    nbytes: int
    count: int
    out_of_place: float
    in_place: float
    nccl: float
    wrong: int
    ranks: int

    @property
    def overhead(self) -> float:
        """Seconds that tfcollective's call takes longer than NCCL's."""
        return self.out_of_place - self.nccl

    def algbw(self, seconds: float) -> float:
        """Bytes per second as the caller sees them."""
        return self.nbytes / seconds if seconds > 0 else 0.0

    def busbw(self, seconds: float) -> float:
        """The same times 2(p-1)/p: what the links carry."""
        return self.algbw(seconds) * 2 * (self.ranks - 1) / self.ranks


def measure_device(
    world: Communicator, device: Device, sizes: Sequence[int], *, dtype: str, rounds: int, iterations: int
) -> list[DeviceRow]:
    """Measures every size, ours and NCCL's in turns.

    Args:
        world: the ranks that take part; all of them call this.
        device: this rank's GPU.
        sizes: bytes, at least one element each.
        dtype: one of TYPES.
        rounds: turns; medians are taken over them.
        iterations: calls of a turn up to 1 MiB; fewer for larger arrays.
    """
    import numpy as np

    element = np.dtype(dtype).itemsize
    direct = device.nccl(world)
    rows = []
    for nbytes in sizes:
        count = max(1, nbytes // element)
        source, target = device.full(count, dtype, 1), device.full(count, dtype, 0)

        def ours(into: Any, source: Any = source) -> None:
            world.allreduce(source, Sum, out=into)

        calls: dict[str, Callable[[], object]] = {
            "nccl": lambda source=source, target=target: direct(source, target),  # type: ignore[misc]
            "out_of_place": lambda ours=ours, target=target: ours(target),  # type: ignore[misc]
        }
        number = iterations if nbytes <= _SMALL else _FEW_CALLS
        took = _interleaved(calls, device, rounds, number)
        wrong = device.wrong(target, world.size)
        # In place the values would grow with each call: zeros stay zeros.
        zeros = device.full(count, dtype, 0)
        again = {"in_place": lambda zeros=zeros: world.allreduce(zeros, Sum, out=zeros)}
        took |= _interleaved(again, device, rounds, number)
        wrong += device.wrong(zeros, 0)
        rows.append(
            DeviceRow(count * element, count, took["out_of_place"], took["in_place"], took["nccl"], wrong, world.size)
        )
    return rows


def _interleaved(
    calls: Mapping[str, Callable[[], object]], device: Device, rounds: int, iterations: int
) -> dict[str, float]:
    """Seconds of one call of each: the median of `rounds` turns after one that does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(rounds + 1):
        for name, call in calls.items():
            device.synchronize()
            began = time.perf_counter()
            for _ in range(iterations):
                call()
            device.synchronize()
            if turn:
                seconds[name].append((time.perf_counter() - began) / iterations)
    return {name: statistics.median(values) for name, values in seconds.items()}


def device_table(rows: Sequence[DeviceRow], dtype: str) -> str:
    """The columns of nccl-tests (us, GB/s), and NCCL's own call beside them."""
    head = f"{'size':>12} {'count':>12} {'type':>8} {'redop':>6} {'root':>5}"
    head += f" {'time':>9} {'algbw':>7} {'busbw':>7} {'#wrong':>7} {'in-place':>9} {'algbw':>7} {'busbw':>7}"
    lines = [head + f" {'NCCL':>9} {'more us':>8} {'more %':>7}"]
    for row in rows:
        line = f"{row.nbytes:>12} {row.count:>12} {dtype:>8} {'sum':>6} {-1:>5}"
        line += f" {_speed(row, row.out_of_place)} {row.wrong:>7} {_speed(row, row.in_place)}"
        more = 100 * row.overhead / row.nccl if row.nccl > 0 else 0.0
        lines.append(line + f" {row.nccl * 1e6:>9.2f} {row.overhead * 1e6:>8.2f} {more:>7.2f}")
    return "\n".join(lines)


def _speed(row: DeviceRow, seconds: float) -> str:
    return f"{seconds * 1e6:>9.2f} {row.algbw(seconds) / 1e9:>7.2f} {row.busbw(seconds) / 1e9:>7.2f}"


def overheads(rows: Sequence[DeviceRow]) -> list[str]:
    """Returns one line for each requirement on a single rank, with whether it is met."""
    lines = []
    small = [row for row in rows if row.nbytes < LARGE]
    if small:
        worst = max(small, key=lambda row: row.overhead)
        verdict = "reached" if worst.overhead < MOST_OVERHEAD_S else "MISSED"
        lines.append(
            f"{verdict}: a call costs {worst.overhead * 1e6:.2f} us more than NCCL's at {worst.nbytes} bytes "
            f"(must: under {MOST_OVERHEAD_S * 1e6:.0f} us)"
        )
    large = [row for row in rows if row.nbytes >= LARGE and row.nccl > 0]
    if large:
        worst = max(large, key=lambda row: row.overhead / row.nccl)
        share = worst.overhead / worst.nccl
        verdict = "reached" if share < MOST_OVERHEAD else "MISSED"
        lines.append(
            f"{verdict}: {100 * share:.2f} % more than NCCL's at {worst.nbytes} bytes (must: under "
            f"{100 * MOST_OVERHEAD:.0f} % from 64 MiB on)"
        )
    return lines
