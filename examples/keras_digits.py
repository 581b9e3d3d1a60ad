"""Trains a small network on scikit-learn's handwritten digits with Keras `fit`.

    python keras_digits.py                                # one process
    tfcollective run -np 2 python keras_digits.py         # two, each with half of every batch

The lines marked (1) to (4) make the script distributed.
"""

import argparse
from pathlib import Path

import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import tfcollective.keras as tfc

GLOBAL_BATCH = 64


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--model-dir", type=Path, default=Path("models"), help="where the trained model goes")
    return parser.parse_args()


def load_data():
    """Returns (train images, train labels), (held-out images, held-out labels); images are 8 x 8 x 1 in 0..1."""
    digits = load_digits()
    images = (digits.images[..., None] / 16.0).astype("float32")
    x_train, x_test, y_train, y_test = train_test_split(
        images, digits.target, test_size=0.2, random_state=0, stratify=digits.target
    )
    return (x_train, y_train), (x_test, y_test)


def make_model() -> tf.keras.Model:
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            layers.Input((8, 8, 1)),
            layers.Conv2D(32, 3, activation="relu"),
            layers.Conv2D(64, 3, activation="relu"),
            layers.Flatten(),
            layers.Dropout(0.25),
            layers.Dense(10),
        ]
    )


def main() -> None:
    arguments = parse_arguments()
    tfc.init()  # (1) join the world

    train, held_out = load_data()
    data = tf.data.Dataset.from_tensor_slices(train)
    data = tfc.shard(data)  # (2) this rank's part, as many elements as every other rank's
    data = data.cache().shuffle(2000).batch(max(1, GLOBAL_BATCH // tfc.size()))

    model = make_model()
    model.compile(
        optimizer=tfc.DistributedOptimizer(tf.keras.optimizers.Adam(3e-3)),  # (3) average the gradients
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model.fit(
        data,
        epochs=arguments.epochs,
        callbacks=[tfc.BroadcastGlobalVariablesCallback(0), tfc.MetricAverageCallback()],  # (4) start equal
        verbose=2 if tfc.rank() == 0 else 0,
    )

    if tfc.rank() == 0:
        _, accuracy = model.evaluate(*held_out, verbose=0)
        arguments.model_dir.mkdir(parents=True, exist_ok=True)
        path = (arguments.model_dir / "keras_digits.keras").resolve()
        model.save(path)
        print(f"held-out accuracy: {accuracy:.4f}")
        print(f"model saved to {path}")


if __name__ == "__main__":
    main()
