"""Squeezes pictures of digits into eight numbers and draws them again; also takes noise away."""

import numpy as np
from sklearn.datasets import load_digits
from tensorflow import keras
from tensorflow.keras import layers

keras.utils.set_random_seed(1)
images = (load_digits().images / 16.0).astype("float32")
train, test = images[:1500], images[1500:]


class Autoencoder(keras.Model):
    """An encoder and a decoder."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.encoder = keras.Sequential(
            [layers.Flatten(), layers.Dense(32, activation="relu"), layers.Dense(size, activation="relu")]
        )
        self.decoder = keras.Sequential(
            [layers.Dense(32, activation="relu"), layers.Dense(64, activation="sigmoid"), layers.Reshape((8, 8))]
        )

    def call(self, x):
        return self.decoder(self.encoder(x))


model = Autoencoder(8)
model.compile(optimizer="adam", loss="mse")
history = model.fit(train, train, epochs=4, batch_size=50, shuffle=True, validation_data=(test, test), verbose=2)

codes = model.encoder.predict(test, verbose=0)
drawn = model.decoder.predict(codes, verbose=0)
print(f"mean squared error of a pixel: {np.mean((drawn - test) ** 2):.4f}")

noisy = np.clip(train + 0.3 * np.random.normal(size=train.shape), 0, 1).astype("float32")
denoiser = keras.Sequential(
    [
        keras.Input((8, 8, 1)),
        layers.Conv2D(8, 3, activation="relu", padding="same", strides=2),
        layers.Conv2DTranspose(8, 3, activation="relu", padding="same", strides=2),
        layers.Conv2D(1, 3, activation="sigmoid", padding="same"),
    ]
)
denoiser.compile(optimizer="adam", loss="binary_crossentropy")
rate = keras.callbacks.LearningRateScheduler(lambda epoch: 0.01 * 0.5**epoch)
denoised = denoiser.fit(noisy[..., None], train[..., None], epochs=2, batch_size=64, callbacks=[rate], verbose=2)
print(f"loss without noise: {denoiser.evaluate(noisy[..., None], train[..., None], verbose=0):.4f}")
