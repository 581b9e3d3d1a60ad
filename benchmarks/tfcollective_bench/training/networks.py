"""Builds the benchmark's models and data with whatever Keras TensorFlow brings. Runs in the training processes only.

The data are made from a seed: a teacher that the model can learn labels random inputs, so that the loss falls and can
be compared. Every process has data of its own; all have the same held-out batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfcollective_bench.training.models import CLASSES, Layer, ModelSpec

__all__ = ["build_model", "build_optimizer", "dataset", "held_out", "samples"]

_TEACHER_SEED = 12_345
_LATENT = 16
_HELD_OUT_SEED = 54_321
_HELD_OUT_SAMPLES = 512


def build_model(spec: ModelSpec, seed: int) -> Any:
    """A Keras model whose outputs are logits; equal on all processes that give the same seed."""
    layers = tf.keras.layers
    tf.keras.utils.set_random_seed(seed)
    dtype = "int64" if spec.layers[0].kind == "embedding" else "float32"
    model = tf.keras.Sequential([layers.Input(spec.input_shape, dtype=dtype)])
    for layer in spec.layers:
        for part in _parts(layer):
            model.add(part)
    return model


def _parts(layer: Layer) -> list[Any]:
    layers = tf.keras.layers
    if layer.kind == "dense":
        return [layers.Dense(layer.outputs, activation=layer.activation)]
    if layer.kind == "conv":
        return [layers.Conv2D(layer.outputs, 3, padding="same", activation=layer.activation), layers.MaxPooling2D()]
    if layer.kind == "embedding":
        return [layers.Embedding(layer.inputs, layer.outputs), layers.GlobalAveragePooling1D()]
    return [layers.GlobalAveragePooling2D()]


def build_optimizer(spec: ModelSpec) -> Any:
    """Plain SGD: the optimizer with the least work of its own, and no state that asynchronous updates could spoil."""
    return tf.keras.optimizers.SGD(spec.learning_rate)


def samples(spec: ModelSpec, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """``count`` inputs and their labels (int64), the same for the same seed."""
    rng, teacher = np.random.default_rng(seed), np.random.default_rng(_TEACHER_SEED)
    if spec.layers[0].kind == "embedding":
        vocabulary = spec.layers[0].inputs
        scores = teacher.normal(size=(vocabulary, CLASSES)).astype(np.float32)
        # Squared: few ids are frequent, most are rare, as words are.
        ids = (vocabulary * rng.random((count, *spec.input_shape)) ** 2).astype(np.int64)
        return ids, scores[ids].sum(axis=1).argmax(axis=1)
    latent = rng.standard_normal((count, _LATENT), np.float32)
    labels = (latent @ teacher.standard_normal((_LATENT, CLASSES))).argmax(axis=1)
    # Flat inputs show the latent numbers in all features; images in their channels' levels, as a network sees them that
    # ends in a mean over the places.
    shape = spec.input_shape if len(spec.input_shape) == 1 else (1, 1, spec.input_shape[-1])
    mixing = teacher.standard_normal((_LATENT, shape[-1])).astype(np.float32) / np.float32(np.sqrt(_LATENT))
    inputs = rng.standard_normal((count, *spec.input_shape), np.float32)
    return inputs + (latent @ mixing).reshape(count, *shape), labels


def dataset(spec: ModelSpec, ranks: Sequence[int]) -> Any:
    """An endless ``tf.data.Dataset`` of the batches of these processes, ready in memory; of several, one after the
    other in each batch.
    """
    each = [samples(spec, spec.batch * spec.batches, seed=rank) for rank in ranks]
    arrays = [np.stack(of_ranks) for of_ranks in zip(*each, strict=True)]
    by_batch = [one.reshape(len(ranks), spec.batches, spec.batch, *one.shape[2:]).swapaxes(0, 1) for one in arrays]
    batched = tuple(one.reshape(spec.batches, -1, *one.shape[3:]) for one in by_batch)
    return tf.data.Dataset.from_tensor_slices(batched).repeat().prefetch(2)


def held_out(spec: ModelSpec) -> tuple[np.ndarray, np.ndarray]:
    """The batch that the loss is measured on: the same for all."""
    return samples(spec, _HELD_OUT_SAMPLES, _HELD_OUT_SEED)
