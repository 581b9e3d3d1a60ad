"""Measures how many images a second a convolutional network trains on, with random data.

python synthetic_benchmark.py
tfcollective run -np 2 python synthetic_benchmark.py
"""

import argparse
import timeit

import numpy as np
import tensorflow as tf

import tfcollective.tensorflow as tfc


def make_model() -> tf.keras.Model:
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            layers.Input((32, 32, 3)),
            *(layers.Conv2D(filters, 3, strides=2, activation="relu") for filters in (32, 64, 128)),
            layers.Flatten(),
            layers.Dense(256, activation="relu"),
            layers.Dense(100),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--batch-size", type=int, default=32, help="of each process")
    parser.add_argument("--warmup-batches", type=int, default=5)
    parser.add_argument("--batches", type=int, default=10, help="in one measurement")
    parser.add_argument("--rounds", type=int, default=5, help="measurements")
    parser.add_argument("--fp16-allreduce", action="store_true", help="halve what travels")
    arguments = parser.parse_args()

    tfc.init()
    model, optimizer = make_model(), tf.keras.optimizers.SGD(0.01)
    images = tf.random.uniform([arguments.batch_size, 32, 32, 3])
    labels = tf.random.uniform([arguments.batch_size], maxval=100, dtype=tf.int64)
    loss_function = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    compression = tfc.Compression.fp16 if arguments.fp16_allreduce else tfc.Compression.none

    @tf.function
    def step() -> None:
        with tf.GradientTape() as tape:
            loss = loss_function(labels, model(images, training=True))
        tape = tfc.DistributedGradientTape(tape, compression=compression)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    tfc.broadcast_variables(model.variables, root_rank=0)
    timeit.timeit(step, number=arguments.warmup_batches)
    seconds = timeit.repeat(step, number=arguments.batches, repeat=arguments.rounds)
    rates = arguments.batch_size * arguments.batches / np.array(seconds)
    total = tfc.allreduce(tf.constant(rates), op=tfc.Sum, name="images per second").numpy()
    if tfc.rank() == 0:
        print(f"images/s of rank 0: {rates.mean():.1f} +- {1.96 * rates.std():.1f}")
        print(f"images/s of all {tfc.size()} processes: {total.mean():.1f} +- {1.96 * total.std():.1f}")


if __name__ == "__main__":
    main()
