"""A compiled model's variables, by what has to happen to them when ranks are made equal."""

from __future__ import annotations

from typing import Any

__all__ = ["build_optimizer", "optimizer_variables"]


def build_optimizer(model: Any) -> None:
    """Makes the optimizer's variables, if it has not got them yet and can be told to."""
    optimizer: Any = getattr(model, "optimizer", None)
    if hasattr(optimizer, "build") and not getattr(optimizer, "built", False) and model.trainable_variables:
        optimizer.build(model.trainable_variables)


def optimizer_variables(optimizer: Any) -> list[Any]:
    """The variables of an optimizer of Keras 2 or 3; none if there is no optimizer."""
    if optimizer is None:
        return []
    variables = optimizer.variables
    return list(variables() if callable(variables) else variables)
