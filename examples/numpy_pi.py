"""Computes pi on all ranks, with numpy arrays and no TensorFlow.

    python numpy_pi.py
    tfcollective run -np 2 python numpy_pi.py

Every rank integrates 4 / (1 + x^2) over its share of [0, 1] by the midpoint rule; an all-reduce sums the parts.
"""

import math

import numpy as np

import tfcollective

INTERVALS = 10_000_000


def main() -> None:
    tfcollective.init()
    world = tfcollective.get_communicator()

    middles = (np.arange(world.rank, INTERVALS, world.size) + 0.5) / INTERVALS
    part = np.sum(4.0 / (1.0 + middles**2)) / INTERVALS
    pi = float(world.allreduce(np.array(part), op=tfcollective.Sum, name="pi"))

    # Every rank holds the same bits.
    copies = world.allgather(np.array([pi]))
    assert (copies == pi).all()
    if world.rank == 0:
        print(f"pi is {pi:.12f} (error {abs(pi - math.pi):.1e}), computed by {world.size} process(es)")


if __name__ == "__main__":
    main()
