"""A script for Horovod that does not use tfcollective. Any number of ranks."""

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

pair = hvd.ProcessSet([0, 1])
hvd.init(process_sets=[pair])
rank, size = hvd.rank(), hvd.size()
assert hvd.gloo_enabled()
assert (hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()) == (rank, size, 0, 1)
np.testing.assert_array_equal(hvd.allreduce(tf.constant([rank + 1.0]), op=hvd.Sum), [size * (size + 1) / 2])
if pair.included():
    np.testing.assert_array_equal(hvd.allreduce(tf.constant(1), op=hvd.Sum, process_set=pair), 2)
print("ok collectives", flush=True)

tf.random.set_seed(rank)
model = tf.keras.Sequential([tf.keras.layers.Input((3,)), tf.keras.layers.Dense(1)])
optimizer = tf.keras.optimizers.SGD(0.1)
x = np.random.default_rng(rank).normal(size=(64, 3)).astype(np.float32)
y = x @ np.array([[1.0], [2.0], [3.0]], np.float32)
hvd.broadcast_variables(model.variables, root_rank=0)
for _ in range(100):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(x) - y))
    tape = hvd.DistributedGradientTape(tape)
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
everywhere = hvd.allgather(tf.reshape(model.get_weights()[0], [1, 3]))
np.testing.assert_array_equal(everywhere, np.repeat(everywhere[:1], size, axis=0))
np.testing.assert_allclose(everywhere[0], [1, 2, 3], atol=0.05)
print("ok training", flush=True)
hvd.shutdown()
hvd.init()
np.testing.assert_array_equal(hvd.broadcast(tf.constant(rank), 1), 1)
print("ok again", flush=True)
