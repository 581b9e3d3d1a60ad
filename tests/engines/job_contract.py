"""What holds on every engine. Any number of ranks; the engine is that of TFCOLLECTIVE_ENGINE."""

from __future__ import annotations

import os

import numpy as np

import tfcollective

tfcollective.init()
ENGINE = os.environ["TFCOLLECTIVE_ENGINE"]
world = tfcollective.get_communicator()
rank, size = tfcollective.rank(), tfcollective.size()
TYPES = ["float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]


def mine(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape, dtype=int)).reshape(shape) % 5 + rank


def everyone(*shape: int) -> list[np.ndarray]:
    return [mine(*shape) - rank + other for other in range(size)]


def equal(got: object, expected: object) -> None:
    np.testing.assert_array_equal(np.asarray(got, np.float64), np.asarray(expected, np.float64))


def raises(kind: type[BaseException], call: object, *texts: str) -> None:
    try:
        call()
    except kind as error:
        assert all(text in str(error) for text in texts), error
    else:
        raise AssertionError(f"no {kind.__name__}")


def topology() -> None:
    assert world.size == size == int(os.environ["EXPECTED_SIZE"])
    assert (tfcollective.local_rank(), tfcollective.local_size()) == (rank, size)
    assert (tfcollective.cross_rank(), tfcollective.cross_size()) == (0, 1)
    assert tfcollective.is_homogeneous()
    equal(world.allgather([rank]), range(size))


def reductions() -> None:
    ops = {
        tfcollective.Sum: lambda arrays: sum(arrays),
        tfcollective.Min: lambda arrays: np.min(arrays, axis=0),
        tfcollective.Max: lambda arrays: np.max(arrays, axis=0),
        tfcollective.Product: lambda arrays: np.prod(arrays, axis=0),
    }
    for dtype in TYPES:
        for shape in [(), (0,), (3, 5), (1031,)]:
            for op, expected in ops.items():
                if dtype == "uint64" and op in (tfcollective.Min, tfcollective.Max) and ENGINE != "native":
                    continue
                got = world.allreduce(mine(*shape).astype(dtype), op)
                assert got.dtype == dtype
                assert got.shape == shape
                equal(got, expected(everyone(*shape)))
    flags = world.allreduce(np.array([rank == 0, True, False]), tfcollective.Sum)
    assert flags.tolist() == [True, True, False]


def averages_and_scales() -> None:
    equal(world.allreduce(mine(7).astype(np.float32)), sum(everyone(7)) / size)
    signed = world.allreduce(np.array([-1 - rank, 4 + rank], np.int32))
    equal(signed, [int(-sum(range(1, size + 1)) / size), int(sum(range(4, size + 4)) / size)])
    scaled = world.allreduce(mine(4).astype(np.float64), tfcollective.Sum, prescale=0.5, postscale=4.0)
    equal(scaled, 2 * sum(everyone(4)))
    ints = world.allreduce(np.full(3, 3, np.int64), tfcollective.Sum, prescale=0.5)
    equal(ints, np.full(3, size))


def rows() -> None:
    equal(world.allgather(np.full((rank, 2), rank)), np.concatenate([np.full((r, 2), r) for r in range(size)]))
    equal(world.broadcast(mine(3, 2), size - 1), everyone(3, 2)[-1])
    got, received = world.alltoall(np.full(sum(range(size)), rank), list(range(size)))
    equal(got, np.repeat(np.arange(size), rank))
    assert received == [rank] * size
    own = np.array_split(sum(everyone(2 * size + 1, 3)), size)[rank]
    equal(world.reducescatter(mine(2 * size + 1, 3), tfcollective.Sum), own)
    target = np.zeros(3)
    assert world.allreduce(np.ones(3), tfcollective.Sum, out=target) is target
    equal(target, np.full(3, size))
    world.barrier()


def bad_arguments() -> None:
    raises(tfcollective.InvalidArgumentError, lambda: world.broadcast(np.ones(1), size), "root")
    raises(tfcollective.InvalidArgumentError, lambda: world.alltoall(np.ones(2), [5] * size), "splits")
    raises(tfcollective.InvalidArgumentError, lambda: world.reducescatter(np.float32(1)), "dimension")
    raises(tfcollective.UnsupportedError, lambda: world.allreduce(np.ones(1, complex)), "complex")
    equal(world.allreduce([1.0], tfcollective.Sum), [size])


def process_sets() -> None:
    ends = tfcollective.add_process_set([0, size - 1])
    if ends.included():
        members = tfcollective.get_communicator(ends)
        assert (members.rank, members.size) == (int(rank > 0), 2)
        equal(members.allreduce([rank], tfcollective.Sum), [size - 1])
        equal(members.allgather(np.full(members.rank + 1, rank)), [0, size - 1, size - 1])
        equal(members.broadcast([rank], 1), [size - 1])
        equal(members.alltoall([10 * rank, 10 * rank + 1])[0], [members.rank, 10 * (size - 1) + members.rank])
    equal(world.allreduce([1], tfcollective.Sum), [size])
    assert tfcollective.remove_process_set(ends)
    alone = tfcollective.add_process_set([1])
    if alone.included():
        equal(tfcollective.get_communicator(alone).allreduce([7], tfcollective.Sum), [7])
    equal(world.allreduce([1], tfcollective.Sum), [size])


def disagreement() -> None:
    raises(
        tfcollective.CollectiveMismatchError,
        lambda: world.allreduce(np.ones(2 + rank), name="gradient"),
        "rank 0: allreduce 'gradient' float64[2]",
        f"rank {size - 1}: allreduce 'gradient' float64[{size + 1}]",
    )


for check in (topology, reductions, averages_and_scales, rows, bad_arguments, process_sets, disagreement):
    check()
    os.write(1, f"ok {check.__name__}\n".encode())  # at once: several ranks share one pipe
tfcollective.shutdown()
