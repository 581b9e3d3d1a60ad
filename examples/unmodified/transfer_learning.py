"""Learns the digits 5 to 9 with a network that knows 0 to 4: first the new head, then all of it, slowly."""

import tempfile
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from tensorflow import keras
from tensorflow.keras import layers

keras.utils.set_random_seed(1)
digits = load_digits()
images = (digits.images[..., None] / 16.0).astype("float32")
old = digits.target < 5
CROSS_ENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

# A network that somebody has trained and saved.
base = keras.Sequential(
    [
        keras.Input((8, 8, 1)),
        layers.Conv2D(16, 3, activation="relu"),
        layers.BatchNormalization(momentum=0.9),
        layers.Conv2D(16, 3, activation="relu"),
        layers.GlobalAveragePooling2D(),
    ]
)
known = keras.Sequential([base, layers.Dense(5)])
known.compile(keras.optimizers.Adam(0.01), CROSS_ENTROPY, metrics=["accuracy"])
pretrained = known.fit(images[old], digits.target[old], batch_size=64, epochs=3, verbose=2)
path = Path(tempfile.mkdtemp(), "base.keras")
base.save(path)

# Phase 1: the base is frozen.
base = keras.models.load_model(path)
base.trainable = False
inputs = keras.Input((8, 8, 1))
model = keras.Model(inputs, layers.Dense(5)(base(inputs, training=False)))
model.compile(keras.optimizers.Adam(0.01), CROSS_ENTROPY, metrics=["accuracy"])
x, y = images[~old], digits.target[~old] - 5
stop = keras.callbacks.EarlyStopping(monitor="val_accuracy", patience=2, restore_best_weights=True)
head = model.fit(x, y, batch_size=64, epochs=4, validation_split=0.2, callbacks=[stop], verbose=2)

# Phase 2: everything is trained, with a lower rate. BatchNormalization still uses what it knows.
base.trainable = True
model.compile(keras.optimizers.Adam(1e-3), CROSS_ENTROPY, metrics=["accuracy"])
fine = model.fit(x, y, batch_size=64, epochs=8, initial_epoch=4, validation_split=0.2, verbose=2)

classes = np.argmax(model.predict(x[-100:], verbose=0), axis=-1)
print(f"right for {np.mean(classes == y[-100:]):.0%} of the last 100 digits")
