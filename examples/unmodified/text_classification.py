"""Tells friendly reviews from unfriendly ones, from their words to a model that takes text."""

import random

import numpy as np
import tensorflow as tf
from tensorflow import keras
from tensorflow.keras import layers

keras.utils.set_random_seed(1)
random.seed(1)
GOOD = ["great", "lovely", "funny", "moving", "brilliant", "touching", "fresh", "clever"]
BAD = ["dull", "boring", "awful", "tired", "clumsy", "stupid", "flat", "endless"]
OTHER = [
    "the",
    "a",
    "film",
    "plot",
    "actor",
    "scene",
    "music",
    "of",
    "with",
    "and",
    "was",
    "it",
    "this",
    "very",
    "camera",
    "story",
]


def review(words: list[str]) -> str:
    """Returns a review of 5 to 20 words, some of which say what the writer thinks."""
    text = [random.choice(words if random.random() < 0.25 else OTHER) for _ in range(random.randint(5, 20))]
    return " ".join(text).capitalize() + random.choice([".", "!", "...<br />"])


labels = np.array([number % 2 for number in range(400)])
texts = [review(GOOD if label else BAD) for label in labels]
train = tf.data.Dataset.from_tensor_slices((texts[:300], labels[:300])).shuffle(300).batch(32)
test = tf.data.Dataset.from_tensor_slices((texts[300:], labels[300:])).batch(32)


def clean(text: tf.Tensor) -> tf.Tensor:
    """Removes tags and punctuation."""
    return tf.strings.regex_replace(tf.strings.lower(text), "<br />|[^a-z ]", "")


vectorize = layers.TextVectorization(standardize=clean, max_tokens=100, output_sequence_length=16)
vectorize.adapt(train.map(lambda text, label: text))

model = keras.Sequential(
    [
        layers.Embedding(100, 16),
        layers.GlobalAveragePooling1D(),
        layers.Dense(1),
    ]
)
model.compile(
    optimizer="adam",
    loss=keras.losses.BinaryCrossentropy(from_logits=True),
    metrics=[keras.metrics.BinaryAccuracy(threshold=0.0)],
)
history = model.fit(
    train.map(lambda text, label: (vectorize(text), label)),
    validation_data=test.map(lambda text, label: (vectorize(text), label)),
    epochs=6,
    verbose=2,
)

# The model for use takes text and gives probabilities.
whole = keras.Sequential([vectorize, model, layers.Activation("sigmoid")])
whole.compile(loss=keras.losses.BinaryCrossentropy(), metrics=["accuracy"])
loss, accuracy = whole.evaluate(test, verbose=0)
print(f"test accuracy {accuracy:.3f}")
examples = tf.constant(["A brilliant, moving film!", "The plot was dull and the music awful."])
probabilities = whole.predict(examples, verbose=0)[:, 0]
print("friendly:", [f"{one:.2f}" for one in probabilities])
