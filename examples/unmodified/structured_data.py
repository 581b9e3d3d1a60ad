"""Finds good wines by their chemistry: numbers, words and whole numbers, each with its preprocessing layer."""

from pathlib import Path

import numpy as np
import tensorflow as tf
from tensorflow import keras
from tensorflow.keras import layers

keras.utils.set_random_seed(1)
DATA = Path(__file__).resolve().parent.parent / "winequality"
NUMBERS = ("volatile acidity", "alcohol", "sulphates")


def load(colour: str) -> dict[str, np.ndarray]:
    """Returns the columns of the wines of a colour."""
    rows = np.genfromtxt(DATA / f"winequality-{colour}.csv", delimiter=";", skip_header=1, dtype="float32")[:800]
    names = (DATA / f"winequality-{colour}.csv").read_text().split("\n")[0].replace('"', "").split(";")
    return {**dict(zip(names, rows.T)), "colour": np.full(len(rows), colour)}


both = [load("red"), load("white")]
columns = {name: np.concatenate([wines[name] for wines in both])[:, None] for name in both[0]}
features = {name: columns[name] for name in NUMBERS}
features["colour"] = columns["colour"]
features["sulfur"] = columns["total sulfur dioxide"].astype("int64")
features["pH"] = columns["pH"]
target = (columns["quality"] >= 6).astype("int64")

order = np.random.permutation(len(target))
held_out, rest = order[:300], order[300:]


def dataset(rows: np.ndarray) -> tf.data.Dataset:
    """Returns batches of rows: a dictionary of columns and the target."""
    return tf.data.Dataset.from_tensor_slices(({name: one[rows] for name, one in features.items()}, target[rows]))


train = dataset(rest).shuffle(len(rest)).batch(64).prefetch(2)
test = dataset(held_out).batch(64)

inputs, encoded = {}, []
for name in NUMBERS:
    inputs[name] = keras.Input((1,), name=name)
    normalize = layers.Normalization(axis=None)
    normalize.adapt(features[name][rest])
    encoded.append(normalize(inputs[name]))

inputs["colour"] = keras.Input((1,), name="colour", dtype="string")
lookup = layers.StringLookup(output_mode="one_hot")
lookup.adapt(features["colour"][rest])
encoded.append(lookup(inputs["colour"]))

inputs["sulfur"] = keras.Input((1,), name="sulfur", dtype="int64")
encoded.append(layers.CategoryEncoding(7, output_mode="one_hot")(inputs["sulfur"] // 50))

inputs["pH"] = keras.Input((1,), name="pH")
buckets = layers.Discretization(num_bins=4, output_mode="one_hot")
buckets.adapt(features["pH"][rest])
encoded.append(buckets(inputs["pH"]))

hidden = layers.Dense(32, activation="relu")(layers.Concatenate()(encoded))
model = keras.Model(inputs, layers.Dense(1, activation="sigmoid")(hidden))
model.compile("adam", "binary_crossentropy", metrics=["accuracy", keras.metrics.AUC(name="auc")])
history = model.fit(train, validation_data=test, epochs=5, class_weight={0: 1.2, 1: 0.8}, verbose=2)

results = model.evaluate(test, return_dict=True, verbose=0)
print("held out:", {name: round(value, 3) for name, value in results.items()})
wine = {name: tf.convert_to_tensor(one[:1]) for name, one in features.items()}
probability = model.predict(wine, verbose=0)[0, 0]
print(f"the first wine is good with a probability of {probability:.0%}")
