"""Trains in a loop of its own while processes come and go.

    python elastic_loop.py                                                 # one process
    tfcollective run -np 3 --min-np 1 python elastic_loop.py               # kill one of the three
    tfcollective run -np 3 --min-np 1 python elastic_loop.py --lose 1      # worker 1 kills itself

What has to live through a change is in the state (1): variables, and the sampler's place in the data. The function (2)
is called again after each change; work since the last commit (3) is done again.
"""

import argparse
import os
import signal

import numpy as np
import tensorflow as tf

import tfcollective
import tfcollective.tensorflow as tfc
from tfcollective.tensorflow import elastic


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--lose", type=int, default=-1, metavar="N", help="worker N kills itself in the second epoch")
    arguments = parser.parse_args()

    tfc.init()
    x = np.random.default_rng(0).normal(size=(3000, 1)).astype(np.float32)
    y = 3.0 * x + 1.0
    slope, offset = tf.Variable(0.0), tf.Variable(0.0)

    @tf.function(input_signature=[tf.TensorSpec([None, 1])] * 2)
    def step(some_x: tf.Tensor, some_y: tf.Tensor) -> None:
        with tfc.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.reduce_mean(tf.square(slope * some_x + offset - some_y))
        for variable, gradient in zip((slope, offset), tape.gradient(loss, [slope, offset]), strict=True):
            variable.assign_sub(0.1 * gradient)

    sampler = elastic.ElasticSampler(len(x), batch_size=32)
    state = elastic.TensorFlowState([slope, offset], sampler=sampler, steps=0)  # (1)

    @elastic.run
    def train(state: elastic.TensorFlowState) -> None:  # (2)
        while state.sampler.epoch < arguments.epochs:
            for indices in state.sampler:
                if (state.sampler.epoch, tfcollective.task().index) == (1, arguments.lose):
                    os.kill(os.getpid(), signal.SIGKILL)
                step(x[indices], y[indices])
                state.steps += 1
                state.commit()  # (3)

    train(state)
    if tfc.rank() == 0:
        print(f"y = {float(slope):.2f} x + {float(offset):.2f} after {state.sampler.epoch} epochs")
        print(f"{state.steps} steps, {tfc.size()} processes at the end")


if __name__ == "__main__":
    main()
