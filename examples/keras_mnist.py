"""Trains a small convolutional network on images in MNIST's IDX format, plain or gzipped.

    tfcollective run -np 2 python keras_mnist.py --data DIR

DIR holds `train-images-idx3-ubyte[.gz]`, `train-labels-idx1-ubyte[.gz]` and, for the held-out accuracy,
`t10k-images-idx3-ubyte[.gz]` and `t10k-labels-idx1-ubyte[.gz]`. Where one of the two sets is missing, the other is
split: five sixths to train on, one sixth held out.
"""

import argparse
import gzip
import math
from pathlib import Path

import numpy as np
import tensorflow as tf

import tfcollective.keras as tfc

GLOBAL_BATCH = 128
UNSIGNED_BYTE = 0x08


def read_idx(path: Path) -> np.ndarray:
    """Reads an IDX file of unsigned bytes: two zero bytes, the type, the number of dimensions, each dimension as a
    big-endian 32-bit number, then the data."""
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    if len(raw) < 4 or raw[:2] != b"\0\0" or raw[2] != UNSIGNED_BYTE:
        raise SystemExit(f"{path} is not an IDX file of unsigned bytes")
    shape = np.frombuffer(raw, ">u4", count=raw[3], offset=4)
    data = np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3])
    if len(data) != math.prod(int(n) for n in shape):
        raise SystemExit(f"{path} is damaged: its header promises {shape.tolist()} bytes, and it has {len(data)}")
    return data.reshape(shape)


def find(directory: Path, stem: str) -> Path | None:
    return next((path for path in (directory / stem, directory / f"{stem}.gz") if path.exists()), None)


def load_set(directory: Path, prefix: str):
    """Returns (images, labels) or None when the set is not there; images are N x rows x columns x 1 in 0..1."""
    images = find(directory, f"{prefix}-images-idx3-ubyte")
    labels = find(directory, f"{prefix}-labels-idx1-ubyte")
    if images is None or labels is None:
        return None
    return (read_idx(images)[..., None] / np.float32(255)), read_idx(labels).astype("int64")


def load_data(directory: Path):
    """Returns (training set, held-out set)."""
    train, held_out = load_set(directory, "train"), load_set(directory, "t10k")
    if train is not None and held_out is not None:
        return train, held_out
    images, labels = train or held_out or (None, None)
    if images is None:
        raise SystemExit(f"{directory} has no MNIST files (train-images-idx3-ubyte[.gz] and the other three)")
    cut = len(images) * 5 // 6
    order = np.random.default_rng(0).permutation(len(images))
    images, labels = images[order], labels[order]
    return (images[:cut], labels[:cut]), (images[cut:], labels[cut:])


def make_model(shape: tuple[int, ...]) -> tf.keras.Model:
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            layers.Input(shape),
            layers.Conv2D(16, 3, activation="relu", padding="same"),
            layers.MaxPooling2D(),
            layers.Conv2D(32, 3, activation="relu", padding="same"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(10),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="the directory with the IDX files")
    parser.add_argument("--epochs", type=int, default=3)
    arguments = parser.parse_args()

    tfc.init()
    train, held_out = load_data(arguments.data)
    data = tfc.shard(tf.data.Dataset.from_tensor_slices(train))
    data = data.cache().shuffle(10_000).batch(max(1, GLOBAL_BATCH // tfc.size()))

    model = make_model(train[0].shape[1:])
    model.compile(
        optimizer=tfc.DistributedOptimizer(tf.keras.optimizers.Adam(2e-3)),
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model.fit(
        data,
        epochs=arguments.epochs,
        callbacks=[tfc.BroadcastGlobalVariablesCallback(0), tfc.MetricAverageCallback()],
        verbose=2 if tfc.rank() == 0 else 0,
    )
    if tfc.rank() == 0:
        _, accuracy = model.evaluate(*held_out, verbose=0)
        print(f"held-out accuracy: {accuracy:.4f} on {len(held_out[0])} images")


if __name__ == "__main__":
    main()
