"""Trains with Keras `fit` while processes come and go.

    python elastic_fit.py                                                  # one process
    tfcollective run -np 3 --min-np 1 python elastic_fit.py                # kill one of the three
    tfcollective run -np 3 --min-np 1 python elastic_fit.py --lose 1       # worker 1 kills itself

The callback (1) is all that it needs in addition to a distributed optimizer. All processes pass all of the data.
"""

import argparse
import os
import signal

import numpy as np
import tensorflow as tf

import tfcollective
import tfcollective.keras as tfc


def lose(worker: int, epoch: int) -> None:
    """Kills the process of this worker when the second epoch begins."""
    if epoch == 1 and tfcollective.task().index == worker:
        os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--lose", type=int, default=-1, metavar="N", help="worker N kills itself in the second epoch")
    arguments = parser.parse_args()

    tfc.init()
    x = np.random.default_rng(0).normal(size=(3000, 1)).astype(np.float32)
    y = 3.0 * x + 1.0

    model = tf.keras.Sequential([tf.keras.layers.Input((1,)), tf.keras.layers.Dense(1)])
    model.compile(tfc.DistributedOptimizer(tf.keras.optimizers.SGD(0.1)), loss="mse")
    loses = tf.keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: lose(arguments.lose, epoch))
    history = model.fit(
        x,
        y,
        batch_size=32,
        epochs=arguments.epochs,
        callbacks=[loses, tfc.Elastic()],  # (1)
        verbose=0,
    )

    if tfc.rank() == 0:
        slope, offset = (float(weight.item()) for weight in model.get_weights())
        print(f"y = {slope:.2f} x + {offset:.2f} after {len(history.epoch)} epochs")
        print(f"{int(model.optimizer.iterations)} steps, {tfc.size()} processes at the end")


if __name__ == "__main__":
    main()
