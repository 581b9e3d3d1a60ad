"""Trains on images that a Python function distorts: two processes need less time for an epoch than one.

    python faster_together.py                                # one process, with all cores
    tfcollective run -np 2 python faster_together.py         # two, each with half of every batch

Python runs one thread at a time in a process, so a second process prepares data beside the first one. Both commands
train the same network with the same global batches. NumPy makes the images: nothing has to be downloaded or installed.
"""

import argparse
import time

import numpy as np
import tensorflow as tf

import tfcollective.keras as tfc

GLOBAL_BATCH = 64
SAMPLES = 8192
SIDE = 28


def make_images() -> tuple[np.ndarray, np.ndarray]:
    """Returns (images, labels): ten blurred patterns, with noise; the same on all ranks."""
    random = np.random.default_rng(0)
    patterns = np.kron(random.normal(size=(10, 7, 7)), np.ones((4, 4)))
    labels = random.integers(0, 10, SAMPLES)
    return (patterns[labels] + random.normal(size=(SAMPLES, SIDE, SIDE))).astype("float32"), labels


def distorted(image: np.ndarray) -> np.ndarray:
    """The image, turned a little, scaled and moved, with values between those of its four nearest pixels."""
    angle, scale = np.random.uniform(-0.3, 0.3), np.random.uniform(0.9, 1.1)
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]) / scale
    places = np.tensordot(turn, np.indices((SIDE, SIDE)) - SIDE / 2, 1) + SIDE / 2 + np.random.uniform(-2, 2)
    whole = np.floor(places).astype(int)
    (down, right), (row, column) = places - whole, whole % SIDE
    below, beside = (row + 1) % SIDE, (column + 1) % SIDE
    upper = image[row, column] * (1 - right) + image[row, beside] * right
    lower = image[below, column] * (1 - right) + image[below, beside] * right
    return (upper * (1 - down) + lower * down)[..., None].astype("float32")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--epochs", type=int, default=5)
    arguments = parser.parse_args()
    tfc.init()

    def prepare(image, label):
        image = tf.numpy_function(distorted, [image], tf.float32, stateful=False)
        return tf.ensure_shape(image, (SIDE, SIDE, 1)), label

    data = tf.data.Dataset.from_tensor_slices(make_images())
    data = tfc.shard(data).shuffle(SAMPLES).map(prepare, tf.data.AUTOTUNE)
    data = data.batch(GLOBAL_BATCH // tfc.size()).prefetch(tf.data.AUTOTUNE)

    layers = tf.keras.layers
    model = tf.keras.Sequential(
        [
            layers.Input((SIDE, SIDE, 1)),
            layers.Conv2D(8, 3, strides=2, activation="relu"),
            layers.Conv2D(16, 3, strides=2, activation="relu"),
            layers.Flatten(),
            layers.Dense(10),
        ]
    )
    model.compile(
        optimizer=tfc.DistributedOptimizer(tf.keras.optimizers.Adam(1e-3)),
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    ends = []
    clock = tf.keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: ends.append(time.perf_counter()))
    history = model.fit(
        data,
        epochs=arguments.epochs,
        callbacks=[tfc.BroadcastGlobalVariablesCallback(0), tfc.MetricAverageCallback(), clock],
        verbose=2 if tfc.rank() == 0 else 0,
    )
    if tfc.rank() == 0:
        seconds = np.diff(ends).min()  # without the first epoch, which traces the step
        accuracy = history.history["accuracy"][-1]
        print(f"accuracy {accuracy:.3f}, {seconds:.2f} s for an epoch, {SAMPLES / seconds:.0f} images/s")


if __name__ == "__main__":
    main()
