"""The common base of the classes of distributed optimizers of all Keras versions."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from tfcollective.keras._state import ATTRIBUTE, OptimizerState, state_of
from tfcollective.keras._yaml_dictionaries import YamlDictionary


class Carrying(YamlDictionary):
    """A configuration that tells, in this process, which optimizers of its owner were distributed, and how.

    A file has the dictionary only, and so has a configuration that was put together again.

    Attributes:
        states: by place, as in ``distributed_states``.
    """

    states: dict[str, OptimizerState]

    def __init__(self, config: dict[str, Any], states: dict[str, OptimizerState]) -> None:
        super().__init__(config)
        self.states = states

    def __deepcopy__(self, memo: dict[int, Any]) -> Carrying:
        return Carrying(copy.deepcopy(dict(self), memo), self.states)

    def copy(self) -> Carrying:
        """Returns a copy with the states."""
        return Carrying(self, self.states)


def is_of_keras(kind: type) -> bool:
    """True for a class of Keras's or TensorFlow's, False for one of the user's own."""
    return kind.__module__.partition(".")[0] in ("keras", "tf_keras", "tensorflow", "builtins")


def own_methods(kind: type, names: Sequence[str]) -> list[str]:
    """Returns those of the methods that a class has, or inherits, from a class of the user's own."""
    return [name for name in names if any(name in vars(c) for c in kind.__mro__ if not is_of_keras(c))]


class DistributedMixin:
    """Stands before the optimizer's class; see also the other two functions of ``tfcollective.keras._classes``.

    An optimizer that is made by its class reduces with the options of the one whose configuration is taken, else with
    the defaults of ``DistributedOptimizer``.
    """

    _tfcollective: OptimizerState
    _tfcollective_reduces_first = False  # the optimizer's class has methods of the user's own on the way of gradients

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        object.__setattr__(self, ATTRIBUTE, OptimizerState())
        super().__init__(*args, **kwargs)

    def register_local_var(self, var: Any) -> None:
        """Leaves `var` to this rank: its gradient is not reduced, its value not compared with the other ranks'."""
        self._tfcollective.local.add(var)

    def get_config(self) -> dict[str, Any]:
        """Returns the optimizer's configuration; :meth:`from_config` makes an optimizer that reduces as this one."""
        base: Any = super()
        return Carrying(base.get_config(), {"": self._tfcollective})

    @classmethod
    def from_config(cls, config: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Makes the optimizer of a configuration, distributed."""
        base: Any = super()
        made = base.from_config(dict(config), *args, **kwargs)
        carried = config.states.get("") if isinstance(config, Carrying) else None
        if carried is not None and state_of(made) is not None:
            object.__setattr__(made, ATTRIBUTE, carried.copy())
        return made
