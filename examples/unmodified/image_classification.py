"""Classifies pictures in folders, one folder for each class."""

import tempfile
from pathlib import Path

import numpy as np
import tensorflow as tf
from tensorflow import keras
from tensorflow.keras import layers

keras.utils.set_random_seed(1)
CLASSES = ("checked", "horizontal", "vertical")
SIZE = 24


def draw(pattern: str, generator: np.random.Generator) -> np.ndarray:
    """Returns a noisy picture of stripes or checks in two colours, [SIZE, SIZE, 3]."""
    down, right = (np.mgrid[:SIZE, :SIZE] + generator.integers(0, 8, size=(2, 1, 1))) // 4 % 2
    marked = {"checked": down ^ right, "horizontal": down, "vertical": right}[pattern]
    colours = generator.uniform([[0] * 3, [120] * 3], [[100] * 3, [220] * 3])
    return (colours[marked] + generator.uniform(0, 35, size=(SIZE, SIZE, 3))).astype("uint8")


# Make the data: 60 pictures of each class.
folder = Path(tempfile.mkdtemp())
generator = np.random.default_rng(1)
for name in CLASSES:
    (folder / name).mkdir()
    for number in range(60):
        tf.io.write_file(str(folder / name / f"{number}.png"), tf.io.encode_png(draw(name, generator)))

train, validation = keras.utils.image_dataset_from_directory(
    folder, validation_split=0.2, subset="both", seed=1, image_size=(SIZE, SIZE), batch_size=20
)
train = train.cache().shuffle(200).prefetch(tf.data.AUTOTUNE)
validation = validation.cache().prefetch(tf.data.AUTOTUNE)

model = keras.Sequential(
    [
        keras.Input((SIZE, SIZE, 3)),
        layers.Rescaling(1.0 / 255),
        layers.Conv2D(8, 3, activation="relu"),
        layers.MaxPooling2D(),
        layers.Conv2D(16, 3, activation="relu"),
        layers.MaxPooling2D(),
        layers.Flatten(),
        layers.Dense(32, activation="relu"),
        layers.Dense(len(CLASSES)),
    ]
)
model.compile(
    optimizer=keras.optimizers.Adam(0.003),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
history = model.fit(train, validation_data=validation, epochs=5, verbose=2)

picture = draw("vertical", generator)
scores = tf.nn.softmax(model.predict(picture[None].astype("float32"), verbose=0)[0]).numpy()
print(f"vertical stripes look {CLASSES[np.argmax(scores)]} ({scores.max():.0%})")
