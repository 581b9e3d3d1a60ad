"""Finds discs in noisy pictures, pixel by pixel, with a small U-Net."""

import math

import numpy as np
from tensorflow import keras
from tensorflow.keras import layers

keras.utils.set_random_seed(1)
SIZE = 32


class Discs(keras.utils.Sequence):
    """Batches of pictures [rows, SIZE, SIZE, 1] and of their masks, drawn when they are asked for."""

    def __init__(self, rows: int, batch_size: int, seed: int) -> None:
        super().__init__()
        self.rows, self.batch_size, self.seed = rows, batch_size, seed

    def __len__(self):
        return math.ceil(self.rows / self.batch_size)

    def __getitem__(self, index):
        rows = min(self.batch_size, self.rows - index * self.batch_size)
        generator = np.random.default_rng([self.seed, index])
        down, right = np.mgrid[:SIZE, :SIZE]
        centre, radius = generator.uniform(8, SIZE - 8, size=(2, rows, 1, 1)), generator.uniform(3, 8, (rows, 1, 1))
        masks = np.hypot(down - centre[0], right - centre[1]) < radius
        pictures = 0.6 * masks + 0.3 * generator.normal(size=masks.shape)
        return pictures[..., None].astype("float32"), masks[..., None].astype("int64")


def block(x, filters):
    """A convolution with its normalization."""
    x = layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
    return layers.Activation("relu")(layers.BatchNormalization(momentum=0.8)(x))


inputs = keras.Input((SIZE, SIZE, 1))
fine = block(inputs, 4)
middle = block(layers.MaxPooling2D()(fine), 8)
x = block(layers.MaxPooling2D()(middle), 16)
x = layers.Conv2DTranspose(8, 2, strides=2)(x)
x = block(layers.Concatenate()([x, middle]), 8)
x = layers.Conv2DTranspose(4, 2, strides=2)(x)
x = block(layers.Concatenate()([x, fine]), 4)
model = keras.Model(inputs, layers.Conv2D(2, 1, activation="softmax")(x))

model.compile(
    optimizer=keras.optimizers.SGD(0.1),
    loss="sparse_categorical_crossentropy",
    metrics=["accuracy", keras.metrics.MeanIoU(num_classes=2, sparse_y_pred=False, name="iou")],
)
history = model.fit(Discs(90, 12, seed=1), validation_data=Discs(30, 12, seed=2), epochs=4, verbose=2)

pictures, masks = Discs(5, 5, seed=3)[0]
found = np.argmax(model.predict(pictures, verbose=0), axis=-1)
print("pixels in the discs:", masks.sum(axis=(1, 2, 3)), "found:", found.sum(axis=(1, 2)))
