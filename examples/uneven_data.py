"""Trains on different amounts of data per process: a process without data joins, the others continue.

tfcollective run -np 3 python uneven_data.py
"""

import numpy as np
import tensorflow as tf

import tfcollective.tensorflow as tfc

BATCH = 16
TRUE_WEIGHTS = np.array([[2.0], [-3.0], [0.5]], np.float32)


def own_data(rank: int) -> tf.data.Dataset:
    """Returns data as if each process had read other files: rank r has 40 + 15 r batches."""
    generator = np.random.default_rng(rank)
    x = generator.normal(size=(BATCH * (40 + 15 * rank), 3)).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices((x, x @ TRUE_WEIGHTS)).batch(BATCH)


def main() -> None:
    tfc.init()
    weights = tf.Variable(tf.zeros([3, 1]))

    @tf.function
    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tfc.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.reduce_mean(tf.square(x @ weights - y))
        (gradient,) = tape.gradient(loss, [weights])  # of the processes that still have data
        weights.assign_sub(0.05 * gradient)
        return loss

    steps = sum(1 for x, y in own_data(tfc.rank()) if step(x, y) is not None)
    last = int(tfc.join())
    tfc.broadcast_variables([weights], root_rank=last)  # all end with the weights of the rank that trained longest
    print(f"rank {tfc.rank()} made {steps} steps, rank {last} the most")
    if tfc.rank() == 0:
        print(f"largest error of a weight: {np.abs(weights.numpy() - TRUE_WEIGHTS).max():.5f}")


if __name__ == "__main__":
    main()
