"""Classifies sequences of tokens with a transformer: is there a 3 in it?"""

import numpy as np
import tensorflow as tf
from tensorflow import keras
from tensorflow.keras import layers

keras.utils.set_random_seed(1)
LENGTH, TOKENS, WIDTH = 8, 12, 16

x = np.random.randint(0, TOKENS, size=(700, LENGTH))
y = (x == 3).any(axis=1).astype("int64")
x_train, y_train, x_test, y_test = x[:600], y[:600], x[600:], y[600:]


class TokenAndPositionEmbedding(layers.Layer):
    """The sum of an embedding of the token and one of its place."""

    def __init__(self, length, tokens, width):
        super().__init__()
        self.token_emb = layers.Embedding(tokens, width)
        self.pos_emb = layers.Embedding(length, width)

    def call(self, x):
        return self.token_emb(x) + self.pos_emb(tf.range(tf.shape(x)[-1]))


class TransformerBlock(layers.Layer):
    """Self-attention and two dense layers, with what goes in added to what comes out."""

    def __init__(self, width, heads, hidden):
        super().__init__()
        self.attention = layers.MultiHeadAttention(num_heads=heads, key_dim=width // heads)
        self.dense = keras.Sequential([layers.Dense(hidden, activation="relu"), layers.Dense(width)])
        self.first_norm = layers.LayerNormalization(epsilon=1e-6)
        self.second_norm = layers.LayerNormalization(epsilon=1e-6)

    def call(self, x):
        x = self.first_norm(x + self.attention(x, x))
        return self.second_norm(x + self.dense(x))


inputs = keras.Input((LENGTH,), dtype="int32")
hidden = TokenAndPositionEmbedding(LENGTH, TOKENS, WIDTH)(inputs)
hidden = TransformerBlock(WIDTH, heads=2, hidden=32)(hidden)
hidden = layers.GlobalAveragePooling1D()(hidden)
hidden = layers.Dense(16, activation="relu")(hidden)
model = keras.Model(inputs, layers.Dense(2, activation="softmax")(hidden))

model.compile(optimizer=keras.optimizers.Adam(0.01), loss="sparse_categorical_crossentropy", metrics=["accuracy"])
history = model.fit(x_train, y_train, batch_size=32, epochs=3, validation_data=(x_test, y_test), verbose=2)

loss, accuracy = model.evaluate(x_test, y_test, verbose=0)
print(f"test accuracy {accuracy:.3f}")
probabilities = model.predict(np.array([[2, 4, 1, 3, 11, 7, 8, 0], [9, 6, 11, 8, 1, 7, 2, 5]]), verbose=0)
print("with a 3, without:", probabilities[:, 1].round(2))
