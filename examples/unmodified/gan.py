"""A generator and a discriminator play against each other, in a training step of their own."""

import numpy as np
import tensorflow as tf
from tensorflow import keras
from tensorflow.keras import layers

keras.utils.set_random_seed(1)
LATENT = 4

# The real points lie on a ring.
angles = np.random.uniform(0, 2 * np.pi, size=1000)
points = np.stack([np.cos(angles), np.sin(angles)], axis=1) + 0.05 * np.random.normal(size=(1000, 2))
noise = np.random.normal(size=(1000, LATENT))
data = tf.data.Dataset.from_tensor_slices((points.astype("float32"), noise.astype("float32")))
data = data.shuffle(1000).batch(64)

generator = keras.Sequential(
    [keras.Input((LATENT,)), layers.Dense(32), layers.LeakyReLU(), layers.Dense(2)], name="generator"
)
discriminator = keras.Sequential(
    [keras.Input((2,)), layers.Dense(32), layers.LeakyReLU(), layers.Dense(1)], name="discriminator"
)


class GAN(keras.Model):
    """Trains the discriminator and then the generator on each batch."""

    def __init__(self, discriminator: keras.Model, generator: keras.Model) -> None:
        super().__init__()
        self.discriminator = discriminator
        self.generator = generator
        self.d_loss_tracker = keras.metrics.Mean(name="d_loss")
        self.g_loss_tracker = keras.metrics.Mean(name="g_loss")

    def compile(self, d_optimizer, g_optimizer, loss_fn):
        super().compile()
        self.d_optimizer = d_optimizer
        self.g_optimizer = g_optimizer
        self.loss_fn = loss_fn

    @property
    def metrics(self):
        return [self.d_loss_tracker, self.g_loss_tracker]

    def train_step(self, data):
        real, noise = data
        ones, zeros = tf.ones((tf.shape(real)[0], 1)), tf.zeros((tf.shape(real)[0], 1))

        with tf.GradientTape() as tape:
            real_loss = self.loss_fn(ones, self.discriminator(real))
            fake_loss = self.loss_fn(zeros, self.discriminator(self.generator(noise)))
            d_loss = (real_loss + fake_loss) / 2
        weights = self.discriminator.trainable_weights
        self.d_optimizer.apply_gradients(zip(tape.gradient(d_loss, weights), weights))

        with tf.GradientTape() as tape:
            g_loss = self.loss_fn(ones, self.discriminator(self.generator(noise)))
        weights = self.generator.trainable_weights
        self.g_optimizer.apply_gradients(zip(tape.gradient(g_loss, weights), weights))

        self.d_loss_tracker.update_state(d_loss)
        self.g_loss_tracker.update_state(g_loss)
        return {"d_loss": self.d_loss_tracker.result(), "g_loss": self.g_loss_tracker.result()}


gan = GAN(discriminator, generator)
gan.compile(
    d_optimizer=keras.optimizers.Adam(1e-3),
    g_optimizer=keras.optimizers.Adam(1e-3),
    loss_fn=keras.losses.BinaryCrossentropy(from_logits=True),
)
history = gan.fit(data, epochs=5, verbose=2)

made = generator.predict(np.random.normal(size=(200, LATENT)).astype("float32"), verbose=0)
print(f"mean distance of the made points from the centre: {np.linalg.norm(made, axis=1).mean():.3f}")
