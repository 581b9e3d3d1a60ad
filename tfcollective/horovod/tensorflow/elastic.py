"""Horovod's module of this name. Keras is imported when its state is used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tfcollective.tensorflow.elastic import (
    ElasticSampler,
    HorovodInternalError,
    HostsUpdatedInterrupt,
    ObjectState,
    State,
    TensorFlowState,
    elastic_dataset,
    run,
)

if TYPE_CHECKING:
    from tfcollective.keras.elastic import KerasState as TensorFlowKerasState

__all__ = [
    "ElasticSampler",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "ObjectState",
    "State",
    "TensorFlowKerasState",
    "TensorFlowState",
    "elastic_dataset",
    "run",
]


def __getattr__(name: str) -> Any:
    if name != "TensorFlowKerasState":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tfcollective.keras.elastic import KerasState

    return KerasState
