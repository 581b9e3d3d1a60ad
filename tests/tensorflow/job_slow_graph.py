"""A graph of TensorFlow 1 with two inputs, of which each rank waits for another one: slow, and no deadlock."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

import tfcollective.tensorflow as tfc

v1 = tf.compat.v1
v1.disable_eager_execution()
tfc.init()


def total(name: str, slow_rank: int) -> tf.Tensor:
    """The sum over the ranks of an input that one of them has late."""

    def rows() -> Iterator[np.ndarray]:
        if tfc.rank() == slow_rank:
            time.sleep(4)  # four times as long as a rank may stand still
        yield np.ones(2, np.float32)

    data = tf.data.Dataset.from_generator(rows, output_types=tf.float32, output_shapes=(2,))
    return tfc.allreduce(v1.data.make_one_shot_iterator(data).get_next(), op=tfc.Sum, name=name)


totals = [total("first", slow_rank=0), total("second", slow_rank=1)]
with v1.Session() as session:
    print("sums", [float(value[0]) for value in session.run(totals)], flush=True)
