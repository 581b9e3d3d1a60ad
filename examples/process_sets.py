"""Two groups of processes train one model each, at the same time in one job, and compare the results.

tfcollective run -np 4 python process_sets.py
"""

import numpy as np
import tensorflow as tf

import tfcollective.tensorflow as tfc

STEPS = 60


def train(group: tfc.ProcessSet, learning_rate: float) -> float:
    """Fits y = 3 x with the other members of the group; returns the slope."""
    generator = np.random.default_rng(tfc.rank())
    slope = tf.Variable(0.0)
    for _ in range(STEPS):
        x = tf.constant(generator.normal(size=16), tf.float32)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(slope * x - 3.0 * x))
        tape = tfc.DistributedGradientTape(tape, process_set=group)  # averages over the group only
        (gradient,) = tape.gradient(loss, [slope])
        slope.assign_sub(learning_rate * gradient)
    return float(slope)


def main() -> None:
    tfc.init()
    half = max(1, tfc.size() // 2)
    slow = tfc.add_process_set(range(half))  # all ranks make all sets, members or not
    fast = tfc.add_process_set(range(half, tfc.size())) if tfc.size() > 1 else slow
    mine, rate = (slow, 0.002) if slow.included() else (fast, 0.1)
    slope = train(mine, rate)
    found = tfc.allgather(tf.constant([[rate, slope]]), name="what everybody found").numpy()
    if tfc.rank() == 0:
        for rank, (one_rate, one_slope) in enumerate(found):
            print(f"rank {rank}: learning rate {one_rate:g}, slope {one_slope:.3f}")


if __name__ == "__main__":
    main()
