"""Embeddings with many equal rows a batch and several threads: replicas keep the same bits."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

tf.config.threading.set_intra_op_parallelism_threads(4)

import tfcollective.keras as tfk
import tfcollective.tensorflow as tfc

tfk.init()
keras = tf.keras
rng = np.random.default_rng(tfk.rank())
X, Y = rng.integers(0, 200, (1024, 64)), rng.normal(size=(1024, 1)).astype(np.float32)

KINDS = (keras.optimizers.SGD, keras.optimizers.Adagrad, keras.optimizers.RMSprop, keras.optimizers.Adam)


def has_equal_bits(optimizer: object) -> bool:
    pooling = keras.layers.GlobalAveragePooling1D()
    model = keras.Sequential(
        [keras.layers.Input((64,)), keras.layers.Embedding(200, 64), pooling, keras.layers.Dense(1)]
    )
    model.compile(optimizer, "mse")
    model.fit(X, Y, batch_size=256, epochs=2, verbose=0, callbacks=[tfk.BroadcastGlobalVariablesCallback(0)])
    weights = [tf.convert_to_tensor(weight).numpy().tobytes() for weight in model.weights]
    return len(set(map(tuple, tfc.allgather_object(weights)))) == 1


for kind in KINDS:
    assert has_equal_bits(tfk.DistributedOptimizer(kind(0.1))), kind
    print("ok", kind.__name__, flush=True)
if hasattr(keras, "distribution"):  # rows that come several times stay apart until the update
    keras.distribution.set_distribution(keras.distribution.DataParallel(auto_shard_dataset=False))
    for kind in KINDS:
        assert has_equal_bits(kind(0.1)), kind
