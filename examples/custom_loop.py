"""Trains a small network on scikit-learn's handwritten digits with a custom training loop.

python custom_loop.py                                # one process
tfcollective run -np 2 python custom_loop.py         # two, each with half of every batch
"""

import argparse

import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import tfcollective.tensorflow as tfc

GLOBAL_BATCH = 64


def load_data():
    digits = load_digits()
    return train_test_split(
        (digits.data / 16.0).astype("float32"), digits.target, test_size=0.2, random_state=0, stratify=digits.target
    )


def make_step(model: tf.keras.Model, optimizer: tf.keras.optimizers.Optimizer):
    """Returns a compiled function that makes one training step and returns the loss on this rank's batch."""
    loss_function = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_function(labels, model(images, training=True))
        tape = tfc.DistributedGradientTape(tape)  # its gradients are averages over all ranks
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--epochs", type=int, default=10)
    arguments = parser.parse_args()

    tfc.init()
    x_train, x_test, y_train, y_test = load_data()
    data = tfc.shard(tf.data.Dataset.from_tensor_slices((x_train, y_train)))
    data = data.cache().shuffle(2000).batch(max(1, GLOBAL_BATCH // tfc.size()))

    layers = tf.keras.layers
    model = tf.keras.Sequential([layers.Input((64,)), layers.Dense(128, activation="relu"), layers.Dense(10)])
    optimizer = tf.keras.optimizers.Adam(3e-3)
    step = make_step(model, optimizer)
    tfc.broadcast_variables(model.variables, root_rank=0)  # all ranks start from rank 0's weights

    for epoch in range(arguments.epochs):
        losses = [step(images, labels) for images, labels in data]
        loss = tfc.allreduce(tf.reduce_mean(losses), name="mean loss")
        if tfc.rank() == 0:
            print(f"epoch {epoch + 1}/{arguments.epochs}: loss {float(loss):.4f}", flush=True)

    if tfc.rank() == 0:
        predictions = tf.argmax(model(x_test), axis=1).numpy()
        print(f"held-out accuracy: {(predictions == y_test).mean():.4f}")


if __name__ == "__main__":
    main()
