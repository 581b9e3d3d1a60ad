"""Recommends films: an embedding of each user and each film, whose product is the rating."""

import numpy as np
import tensorflow as tf
from tensorflow import keras
from tensorflow.keras import layers

keras.utils.set_random_seed(1)
USERS, FILMS, WIDTH = 60, 40, 8

# Ratings from 0 to 1, by what users like and what films have.
likes, has = np.random.normal(size=(USERS, 3)), np.random.normal(size=(FILMS, 3))
pairs = np.stack([np.random.randint(0, USERS, size=1000), np.random.randint(0, FILMS, size=1000)], axis=1)
ratings = 1 / (1 + np.exp(-np.sum(likes[pairs[:, 0]] * has[pairs[:, 1]], axis=1)))


class RecommenderNet(keras.Model):
    """The product of a user's and a film's embedding, and a bias of each."""

    def __init__(self, users, films, width):
        super().__init__()
        regularizer = keras.regularizers.l2(1e-5)
        self.user = layers.Embedding(
            users, width, embeddings_initializer="he_normal", embeddings_regularizer=regularizer
        )
        self.film = layers.Embedding(
            films, width, embeddings_initializer="he_normal", embeddings_regularizer=regularizer
        )
        self.user_bias = layers.Embedding(users, 1)
        self.film_bias = layers.Embedding(films, 1)

    def call(self, pairs):
        user, film = pairs[:, 0], pairs[:, 1]
        product = tf.reduce_sum(self.user(user) * self.film(film), axis=1, keepdims=True)
        return tf.nn.sigmoid(product + self.user_bias(user) + self.film_bias(film))


model = RecommenderNet(USERS, FILMS, WIDTH)
model.compile(
    optimizer=keras.optimizers.Adam(0.02),
    loss="binary_crossentropy",
    metrics=[keras.metrics.RootMeanSquaredError(name="rmse")],
)
history = model.fit(pairs, ratings[:, None], batch_size=64, epochs=4, validation_split=0.1, verbose=2)

user = 7
unseen = np.setdiff1d(np.arange(FILMS), pairs[pairs[:, 0] == user, 1])
scores = model.predict(np.stack([np.full(len(unseen), user), unseen], axis=1), verbose=0)[:, 0]
print(f"user {user} may like the films", unseen[np.argsort(-scores)[:3]])
