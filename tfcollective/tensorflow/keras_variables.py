"""``optimizer.variables()``: a call in the scripts that Horovod's users have, and in Keras 2; a property in Keras 3."""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["let_variables_be_called"]


class CallableList(list):  # type: ignore[type-arg]
    """A list that a call gives, too. Keras 2 has had one since the method became a property."""

    def __call__(self) -> CallableList:
        return self


def let_variables_be_called() -> None:
    """Makes what ``variables`` of Keras 3's optimizers gives a list that may be called.

    Does nothing while Keras is not imported, with Keras 2, and a second time.
    """
    optimizers = getattr(sys.modules.get("keras"), "optimizers", None)
    base = getattr(optimizers, "Optimizer", None)
    if not hasattr(base, "apply"):
        return
    for kind in (base, getattr(optimizers, "LossScaleOptimizer", None)):
        owner = next((c for c in getattr(kind, "__mro__", ()) if "variables" in vars(c)), None)
        found = None if owner is None else vars(owner)["variables"]
        if isinstance(found, property) and not isinstance(found, _CallableVariables):
            setattr(owner, "variables", _CallableVariables(found.fget, doc=found.__doc__))  # noqa: B010  # not known to be there


class _CallableVariables(property):
    """The property, with a list that may be called."""

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        found = super().__get__(instance, owner)
        return CallableList(found) if type(found) is list else found
