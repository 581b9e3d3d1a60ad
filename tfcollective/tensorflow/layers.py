"""Which variables stay each rank's own."""

from __future__ import annotations

from typing import Any

from tfcollective.errors import InvalidArgumentError
from tfcollective.tensorflow.gradients import variable_key


class LocalVariables:
    """Variables, and the trainable weights of layers, which may be built after they were named."""

    def __init__(self) -> None:
        self._variables: dict[int, Any] = {}  # held, so that no other object gets the key
        self._layers: list[Any] = []

    def add(self, variable: Any) -> None:
        """One variable."""
        self._variables[variable_key(variable)] = variable

    def add_layers(self, layers: Any) -> None:
        """A layer, a list of layers, or None.

        Raises:
            InvalidArgumentError: one of them is no layer.
        """
        given = [] if layers is None else [layers] if hasattr(layers, "trainable_weights") else list(layers)
        for layer in given:
            if not hasattr(layer, "trainable_weights"):
                raise InvalidArgumentError(f"local_layers: expected Keras layers, got {layer!r}")
        self._layers += given

    def copy(self) -> LocalVariables:
        """The same ones; what is added to the copy is not added here."""
        made = LocalVariables()
        made._variables = dict(self._variables)
        made._layers = list(self._layers)
        return made

    def keys(self) -> frozenset[int]:
        """:func:`variable_key` of all of them, as far as they exist."""
        weights = (weight for layer in self._layers for weight in layer.trainable_weights)
        return frozenset([*self._variables, *map(variable_key, weights)])
