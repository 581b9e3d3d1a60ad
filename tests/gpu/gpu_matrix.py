"""What is run on real GPUs: every type, reduction and size, the order of streams, a killed peer, and what a call costs.

    python gpu_matrix.py              everything that this machine can do; needs CuPy, numpy and a GPU
    python gpu_matrix.py rank ...     one rank of two on one GPU; started by the above
    python gpu_matrix.py alone        the cases of one rank; what the above gives to compute-sanitizer

Without pytest, so that it runs where only Python, CuPy and tfcollective are.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tfcollective._base.errors import PeerLostError, UnsupportedError
from tfcollective._runtime.communicator import (
    Average,
    CommunicatorOptions,
    Listener,
    Max,
    Min,
    NativeCommunicator,
    Product,
    Sum,
)

TYPES = ("float16", "float32", "float64", "int8", "int32", "int64", "uint8", "uint32", "uint64")
NOT_AVERAGED = ("int8", "int32", "uint8", "uint32")  # NCCL's sum of narrow integers may wrap: refused
SIZES = (0, 1, 7, 1000, 65537, 1 << 20)
KEY = bytes(range(32))
SHARED_FROM = 23003  # NCCL 2.30.3 lets ranks share a GPU
PATIENCE_S = 60.0
SANITIZER_S = 900.0  # it makes kernels many times slower
SANITIZER_FOUND = 99


def values(rank: int, size: int, dtype: str) -> np.ndarray:
    """Small numbers, which every type sums and multiplies exactly."""
    return ((np.arange(size) + rank) % 3 + 1).astype(dtype)


def expected(op: Any, ranks: int, size: int, dtype: str) -> np.ndarray:
    """What the ranks' values give."""
    all_values = [values(rank, size, dtype) for rank in range(ranks)]
    combine = {Sum: np.add, Average: np.add, Min: np.minimum, Max: np.maximum, Product: np.multiply}[op]
    result = all_values[0]
    for other in all_values[1:]:
        result = combine(result, other)
    if op is not Average:
        return result
    return (result / ranks).astype(dtype) if np.issubdtype(result.dtype, np.floating) else result // ranks


def check_matrix(world: NativeCommunicator, put: Callable[[np.ndarray], Any], get: Callable[[Any], np.ndarray]) -> int:
    """Runs every case on this rank; returns how many there were. `put` makes an array on the GPU, `get` reads it."""
    cases = 0
    for dtype in TYPES:
        for size in SIZES:
            mine = values(world.rank, size, dtype)
            for op in (Sum, Average, Min, Max, Product):
                if op is Average and dtype in NOT_AVERAGED:
                    continue
                array, out = put(mine), put(np.zeros_like(mine))
                world.allreduce(array, op, out=out)
                np.testing.assert_array_equal(get(out), expected(op, world.size, size, dtype), err_msg=f"{op} {dtype}")
                cases += 1
            if dtype.startswith("float"):
                array, out = put(mine), put(np.zeros_like(mine))
                world.allreduce(array, Sum, prescale=0.5, out=out)
                total = expected(Sum, world.size, size, dtype) / 2
                np.testing.assert_array_equal(get(out), total, err_msg=f"half the sum {dtype}")
                cases += 1
            array = put(mine)
            world.broadcast(array, world.size - 1, out=array)
            np.testing.assert_array_equal(get(array), values(world.size - 1, size, dtype))
            cases += 1
    ticket = world.ticket()
    assert ticket is not None
    ticket.wait()
    return cases


def options(**more: Any) -> CommunicatorOptions:
    """As the variables of the environment say."""
    from tfcollective._base.settings import Settings

    settings = Settings.load()
    return CommunicatorOptions(nccl=settings.nccl, cuda_driver=settings.cuda_driver, op_timeout=PATIENCE_S, **more)


# ---- on a real GPU ----


def check_order(world: NativeCommunicator, cupy: Any) -> None:
    """A kernel that runs long, the all-reduce of what it writes, and one that spoils it: in this order."""
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        array = cupy.zeros(1 << 22, dtype=cupy.float32)
        for _ in range(200):
            array += 1
        result = world.allreduce(array, Sum, stream=stream)
        array.fill(-1)
        total = float(result.sum())
    assert total == 200.0 * (1 << 22) * world.size, total


def measure(world: NativeCommunicator) -> None:
    """Our cost over NCCL's own, called from CuPy in this process, with one rank."""
    from tfcollective_bench.allreduce.device import CupyDevice, device_table, measure_device, overheads

    try:
        device = CupyDevice()
    except UnsupportedError as error:
        print(f"what a call costs: not measured: {error}")
        return
    sizes = (4, 1 << 10, 1 << 20, 64 << 20, 256 << 20)
    rows = measure_device(world, device, sizes, dtype="float32", rounds=9, iterations=200)
    print("\n".join([device.title, device_table(rows, "float32"), *overheads(rows)]))


def run_pair(kill: bool) -> None:
    """Two processes on this GPU; the second one kills itself if so wished, and the first one has to say so."""
    with tempfile.TemporaryDirectory() as folder:
        limits = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_MAX_CTAS": "4"}
        ranks = [
            subprocess.Popen(
                [sys.executable, __file__, "rank", str(rank), folder, str(int(kill))], env={**os.environ, **limits}
            )
            for rank in range(2)
        ]
        try:
            codes = [rank.wait(timeout=4 * PATIENCE_S) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
    assert codes == [0, -signal.SIGKILL if kill else 0], codes


def run_rank(rank: int, folder: Path, kill: bool) -> None:
    """One of two ranks; they find each other by files in `folder`."""
    import cupy

    listener = Listener("127.0.0.1", "node")
    (folder / f"{rank}.part").write_text(listener.address)
    (folder / f"{rank}.part").rename(folder / f"{rank}")
    begin = time.monotonic()
    while not all((folder / str(other)).exists() for other in range(2)):
        assert time.monotonic() < begin + PATIENCE_S, "the other rank did not start"
        time.sleep(0.01)  # a directory gives no notice without further libraries
    addresses = [(folder / str(other)).read_text() for other in range(2)]
    world = NativeCommunicator.connect(
        listener, rank=rank, addresses=addresses, key=KEY, options=options(share_gpus=True)
    )
    check_matrix(world, cupy.asarray, cupy.asnumpy)
    if not kill:
        world.close()
        return
    array = cupy.ones(1000, dtype=cupy.float32)
    world.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    begin = time.monotonic()
    try:
        while True:
            world.allreduce(array, Sum)
            ticket = world.ticket()
            assert ticket is not None
            ticket.wait()
    except PeerLostError as error:
        print(json.dumps({"lost": error.peer, "seconds": round(time.monotonic() - begin, 3)}))
        assert error.peer == 1


def run_alone() -> None:
    """All cases of one rank."""
    import cupy

    with NativeCommunicator.alone(options=options()) as world:
        check_matrix(world, cupy.asarray, cupy.asnumpy)
        check_order(world, cupy)


def run_sanitizer() -> None:
    """The cases of one rank once more, with every access to the GPU's memory checked."""
    tool = shutil.which("compute-sanitizer")
    if tool is None:
        print("compute-sanitizer: skipped, it is not installed")
        return
    # NCCL tries kernels that are not for this GPU.
    judged = ["--report-api-errors", "no", "--error-exitcode", str(SANITIZER_FOUND)]
    line = [tool, *judged, sys.executable, __file__, "alone"]
    subprocess.run(line, check=True, timeout=SANITIZER_S)
    print("compute-sanitizer: clean")


def main() -> None:
    """Everything, in the order of what depends on least."""
    try:
        import cupy
    except ImportError as error:
        sys.exit(f"error: CuPy is needed ({error}): cupy-cuda12x or cupy-cuda13x, whichever the driver is for")

    from tfcollective._runtime import native_library as _native
    from tfcollective._runtime.native_library.device_calls import DeviceSearch, find_libraries

    given = options()
    found = find_libraries(_native.load(), DeviceSearch(nccl=given.nccl, cuda_driver=given.cuda_driver))
    print(f"CUDA {found.cuda_version}, NCCL {found.nccl_version} {found.nccl_path.decode()}, {found.num_devices} GPUs")
    if not found.num_devices:
        sys.exit(f"error: there is no GPU that can be used: {found.problem.decode() or 'the driver sees none'}")
    with NativeCommunicator.alone(options=given) as world:
        print(f"one rank: {check_matrix(world, cupy.asarray, cupy.asnumpy)} cases")
        check_order(world, cupy)
        print("order of streams: kept")
        measure(world)
    run_sanitizer()
    if found.nccl_version < SHARED_FROM:
        print("two ranks on one GPU: skipped, this NCCL is older than 2.30.3")
        return
    for kill in (False, True):
        run_pair(kill)
        print(f"two ranks on one GPU, {'one killed' if kill else 'all cases'}: passed")


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        run_rank(int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4] == "1")
    elif sys.argv[1:2] == ["alone"]:
        run_alone()
    else:
        main()
