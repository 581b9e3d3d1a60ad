"""The models that the training benchmark trains: pure descriptions, so that sizes are known without TensorFlow."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from tfcollective._base.errors import ConfigError

__all__ = ["MODELS", "Layer", "ModelSpec", "select_models"]

FLOAT_BYTES = 4
CLASSES = 10


@dataclass(frozen=True)
class Layer:
    """A layer of a model.

    Attributes:
        kind: ``dense``, ``conv`` (3x3, same padding, then 2x2 max pooling), ``embedding`` (then the mean over the
            ids of a sample) or ``mean`` (over rows and columns).
        inputs: features per input element (for an embedding: its vocabulary); 0 where a layer has no weights.
        outputs: features per output element.
        activation: ``relu`` or None.
    """

    kind: str
    inputs: int = 0
    outputs: int = 0
    activation: str | None = "relu"

    @property
    def weights(self) -> int:
        """The number of weights of the layer, biases included."""
        if self.kind == "dense":
            return (self.inputs + 1) * self.outputs
        if self.kind == "conv":
            return (9 * self.inputs + 1) * self.outputs
        return self.inputs * self.outputs


@dataclass(frozen=True)
class ModelSpec:
    """A model with its data.

    Attributes:
        name: what the command line calls it.
        text: what it is, for reports.
        bound: what limits its training: ``communication``, ``compute`` or ``sparse``.
        input_shape: of one sample.
        layers: from input to output; the last one gives CLASSES logits.
        batch: samples a process takes per step.
        batches: different batches a process has; it goes round them.
        steps: measured steps of a process in a full run, without warm-up.
        learning_rate: of plain SGD.
    """

    name: str
    text: str
    bound: str
    input_shape: tuple[int, ...]
    layers: tuple[Layer, ...]
    batch: int
    batches: int
    steps: int
    learning_rate: float

    @property
    def weights(self) -> int:
        """The number of weights of the model."""
        return sum(layer.weights for layer in self.layers)

    @property
    def dense_bytes(self) -> int:
        """Bytes of all gradients that are no IndexedSlices."""
        return FLOAT_BYTES * sum(layer.weights for layer in self.layers if layer.kind != "embedding")

    @property
    def sparse_bytes(self) -> int:
        """Bytes of the IndexedSlices of one step at most: a row and a 64-bit index for every id of a batch."""
        ids = self.batch * math.prod(self.input_shape)
        return sum(ids * (FLOAT_BYTES * layer.outputs + 8) for layer in self.layers if layer.kind == "embedding")


def _mlp(hidden: int, steps: int) -> ModelSpec:
    sizes = (784, hidden, hidden, CLASSES)
    layers = tuple(
        Layer("dense", inputs, outputs, "relu" if outputs == hidden else None)
        for inputs, outputs in itertools.pairwise(sizes)
    )
    text = "MLP " + "-".join(map(str, sizes))
    return ModelSpec(f"mlp{hidden}", text, "communication", (784,), layers, 64, 32, steps, 0.05)


_CONVNET = ModelSpec(
    "convnet",
    "convolutional network, 32x32x3, 3 x (3x3 convolution, pooling), dense",
    "compute",
    (32, 32, 3),
    (
        Layer("conv", 3, 32),
        Layer("conv", 32, 64),
        Layer("conv", 64, 128),
        Layer("mean"),
        Layer("dense", 128, CLASSES, None),
    ),
    64,
    16,
    80,
    0.05,
)
_EMBEDDING = ModelSpec(
    "embedding",
    "embedding of 200 000 x 32, mean of 20 ids, dense 64",
    "sparse",
    (20,),
    (Layer("embedding", 200_000, 32, None), Layer("dense", 32, 64), Layer("dense", 64, CLASSES, None)),
    64,
    32,
    600,
    0.5,
)

MODELS = {model.name: model for model in (_mlp(1024, 400), _mlp(2048, 160), _CONVNET, _EMBEDDING)}


def select_models(names: Sequence[str]) -> tuple[ModelSpec, ...]:
    """The models with these names, in this order; ConfigError for an unknown one or none."""
    unknown = [name for name in names if name not in MODELS]
    if unknown:
        raise ConfigError(f"unknown model {unknown[0]!r}: expected one of {', '.join(MODELS)}")
    if not names:
        raise ConfigError(f"no model to train; known: {', '.join(MODELS)}")
    return tuple(MODELS[name] for name in dict.fromkeys(names))
