"""Trains one Keras 3 model on several processes, on whichever backend KERAS_BACKEND names: jax, torch or tensorflow.

    KERAS_BACKEND=jax tfcollective run -np 2 python keras_any_backend.py

The launcher tells the backend's own collectives where to meet; with TensorFlow they are tfcollective's.
"""

import hashlib

import keras  # noqa: TID251  Keras 3 itself
import numpy as np

import tfcollective

GLOBAL_BATCH = 64
BACKEND = keras.backend.backend()


def make_data() -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).normal(size=(4096, 16)).astype("float32")
    return x, x.sum(axis=1, keepdims=True)


def make_model() -> keras.Model:
    layers = keras.layers
    return keras.Sequential([layers.Input((16,)), layers.Dense(32, activation="relu"), layers.Dense(1)])


def connect() -> None:
    """Connects the processes by the backend's own means, before anything is computed."""
    if BACKEND == "jax":
        keras.distribution.initialize()
        # Each process gives its own part of each batch.
        keras.distribution.set_distribution(keras.distribution.DataParallel(auto_shard_dataset=False))
    elif BACKEND == "torch":
        import torch

        torch.distributed.init_process_group("nccl" if torch.cuda.is_available() else "gloo")


def average_gradients(model: keras.Model, optimizer: keras.Optimizer) -> keras.Optimizer:
    """Returns the optimizer for `compile`, with which each process applies the mean of all gradients."""
    if BACKEND == "torch" and tfcollective.size() > 1:
        import torch

        def average(parameter: torch.nn.Parameter) -> None:
            torch.distributed.all_reduce(parameter.grad)
            parameter.grad /= tfcollective.size()

        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(average)
    elif BACKEND == "tensorflow":
        import tfcollective.keras as tfc

        return tfc.DistributedOptimizer(optimizer)
    return optimizer  # with JAX, DataParallel does it


def digest(model: keras.Model) -> str:
    """A text that is the same for equal weights only, to the last bit."""
    return hashlib.sha256(b"".join(weights.tobytes() for weights in model.get_weights())).hexdigest()[:16]


def main() -> None:
    tfcollective.init()  # the rank; and an error of one process ends all
    rank, size = tfcollective.rank(), tfcollective.size()
    if size > 1:
        connect()
    keras.utils.set_random_seed(0)  # all begin with the same weights
    x, y = (part[rank::size] for part in make_data())
    model = make_model()
    model.compile(average_gradients(model, keras.optimizers.Adam(1e-2)), "mse")
    history = model.fit(x, y, batch_size=GLOBAL_BATCH // size, epochs=5, shuffle=False, verbose=0)
    print(f"rank {rank} of {size} with {BACKEND}: loss {history.history['loss'][-1]:.4f}, weights {digest(model)}")


if __name__ == "__main__":
    main()
