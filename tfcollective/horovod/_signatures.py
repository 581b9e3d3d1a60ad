"""Horovod's signatures over tfcollective's functions, which take their options by keyword and have fewer of them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from inspect import Parameter, Signature, signature
from typing import Any

import tensorflow as tf

from tfcollective._base.errors import InvalidArgumentError
from tfcollective.tensorflow import Average, Sum

# Arguments that only Horovod has, with their defaults. The first two choose one that tfcollective has.
_HOROVODS = {
    "average": None,
    "num_groups": 0,
    "device": "",
    "device_dense": "",
    "device_sparse": "",
    "inplace": False,
    "legacy_opts": False,
    "session": None,
}


def with_signature(
    function: Callable[..., Any], names: str, *, like: Callable[..., Any] | None = None
) -> Callable[..., Any]:
    """Returns `function` with the parameters `names` in this order, all of them by position or by keyword.

    Args:
        function: its parameters before the first keyword-only one take those of `names` one by one; all others are
            matched by name, and have the same defaults.
        names: Horovod's, separated by spaces. ``average`` and ``num_groups`` choose ``op`` and ``groups``; what
            `function` does not have is without effect.
        like: what has the parameters of `function`, if it is not `function` itself.
    """
    own = signature(like or function).parameters
    leading = [one for one in own.values() if one.kind is Parameter.POSITIONAL_OR_KEYWORD]
    known = {**own, **dict(zip(names.split(), leading, strict=False))}
    horovods = Signature([_parameter(name, known) for name in names.split()])

    @functools.wraps(like or function)
    def called(*args: Any, **kwargs: Any) -> Any:
        given = horovods.bind(*args, **kwargs).arguments
        first = [given.pop(name) for name in names.split()[: len(leading)] if name in given]
        return function(*first, **{name: value for name, value in _chosen(given).items() if name in own})

    called.__signature__ = horovods  # type: ignore[attr-defined]
    return tf.autograph.experimental.do_not_convert(called)  # type: ignore[no-any-return]  # TensorFlow is not typed


def _parameter(name: str, known: dict[str, Parameter]) -> Parameter:
    default = known[name].default if name in known else _HOROVODS[name]
    return Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, default=default)


def _chosen(given: dict[str, Any]) -> dict[str, Any]:
    average, groups = given.get("average"), given.get("num_groups")
    if given.get("op", Average) is None:
        del given["op"]
    if average is not None:
        if "op" in given:
            raise InvalidArgumentError("op and average cannot be combined: give op")
        given["op"] = Average if average else Sum
    if groups and given.get("groups") is None:
        given["groups"] = groups
    return given
