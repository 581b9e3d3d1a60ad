"""Trains a tf.estimator.Estimator as scripts for Horovod do: a wrapped optimizer, a hook, checkpoints on rank 0.

tfcollective run -np 2 python estimator_hook.py --model-dir /tmp/slope          # TensorFlow 2.15 or older

docs/howto/estimator.md shows train_and_evaluate, which needs the wrapped optimizer but no hook, and lets only rank 0
write.
"""

import argparse

import numpy as np
import tensorflow as tf

import tfcollective.tensorflow as tfc


def input_fn() -> tf.data.Dataset:
    generator = np.random.default_rng(tfc.rank())  # every process has data of its own
    x = generator.normal(size=(2000, 1)).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices((x, 2.0 * x - 1.0)).repeat().batch(32)


def model_fn(features, labels, mode):
    v1 = tf.compat.v1
    with v1.variable_scope("line"):
        slope = v1.get_variable("slope", initializer=tf.constant(float(tfc.rank())))  # until rank 0's is broadcast
        offset = v1.get_variable("offset", initializer=tf.constant(0.0))
    loss = tf.reduce_mean(tf.square(slope * features + offset - labels))
    optimizer = tfc.DistributedOptimizer(v1.train.GradientDescentOptimizer(0.1))
    train = optimizer.minimize(loss, global_step=v1.train.get_or_create_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model-dir", required=True)
    parser.add_argument("--steps", type=int, default=100)
    arguments = parser.parse_args()
    tfc.init()
    if not hasattr(tf, "estimator"):
        raise SystemExit(f"TensorFlow {tf.__version__} has no Estimator any more: use 2.15 or older")
    model_dir = arguments.model_dir if tfc.rank() == 0 else None  # one process writes checkpoints
    estimator = tf.estimator.Estimator(model_fn, model_dir=model_dir)
    estimator.train(input_fn, steps=arguments.steps, hooks=[tfc.BroadcastGlobalVariablesHook(0)])
    if tfc.rank() == 0:
        values = [float(estimator.get_variable_value(f"line/{name}")) for name in ("slope", "offset")]
        print("y = {:.2f} x + {:.2f}".format(*values))


if __name__ == "__main__":
    main()
