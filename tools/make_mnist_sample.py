"""Writes tests/data/mnist: a small data set in MNIST's files, made of scikit-learn's handwritten digits.

    python tools/make_mnist_sample.py [DIRECTORY]

The 8 x 8 images are enlarged to 28 x 28. Both forms that the format comes in are there: the training set is gzipped,
the held-out set is not. Running it again gives the same bytes.
"""

from __future__ import annotations

import gzip
import sys
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

DIRECTORY = Path(__file__).resolve().parent.parent / "tests" / "data" / "mnist"
TRAIN, HELD_OUT = 480, 96
SIDE = 28


def enlarged(images: Any) -> Any:
    """Returns N x 28 x 28 bytes of N x 8 x 8 numbers in 0..16: each pixel three times as wide, with a border of two."""
    big = np.repeat(np.repeat(images, 3, axis=1), 3, axis=2)
    return np.pad(np.minimum(big * 16, 255), ((0, 0), (2, 2), (2, 2))).astype(np.uint8)


def idx(array: Any) -> bytes:
    """Returns the IDX file that holds an array of bytes."""
    sizes = b"".join(int(size).to_bytes(4, "big") for size in array.shape)
    return bytes([0, 0, 0x08, array.ndim]) + sizes + array.tobytes()


def main(directory: Path) -> None:
    """Writes the four files."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    images, labels = enlarged(digits.images[order]), digits.target[order].astype(np.uint8)
    directory.mkdir(parents=True, exist_ok=True)
    train, held_out = slice(0, TRAIN), slice(TRAIN, TRAIN + HELD_OUT)
    for kind, array in (("images-idx3-ubyte", images), ("labels-idx1-ubyte", labels)):
        packed = gzip.compress(idx(array[train]), 9, mtime=0)
        (directory / f"train-{kind}.gz").write_bytes(packed)
        (directory / f"t10k-{kind}").write_bytes(idx(array[held_out]))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else DIRECTORY)
