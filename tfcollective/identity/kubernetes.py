"""Pods of a Kubernetes Indexed Job, alone or made by Kubeflow's Trainer.

The index says which rank a pod is; how many there are and where rank 0 is stand in the manifest.
"""

from __future__ import annotations

from tfcollective.errors import ConfigError
from tfcollective.identity.addresses import DEFAULT_PORT
from tfcollective.identity.by_rank import claim_by_rank, whole_number
from tfcollective.identity.model import Claim, Facts, Source
from tfcollective.settings import variable

__all__ = ["SOURCE"]

_INDEX = "JOB_COMPLETION_INDEX"
_NODES, _PER_NODE = "PET_NNODES", "PET_NPROC_PER_NODE"
_ADDRESS, _PORT = "PET_MASTER_ADDR", "PET_MASTER_PORT"


def _is_present(facts: Facts) -> bool:
    """An index alone may be that of pods which have nothing to do with each other."""
    meant = (
        facts.settings.size is not None or facts.settings.rendezvous is not None or bool(facts.environ.get(_ADDRESS))
    )
    return _INDEX in facts.environ and meant


def _parse(facts: Facts) -> Claim:
    rank = whole_number(facts.environ, _INDEX)
    size = facts.settings.size
    if size is None and facts.environ.get(_PER_NODE, "1") in ("1", "auto"):
        size = whole_number(facts.environ, _NODES, 1) if facts.environ.get(_NODES) else None
    if size is None:
        raise ConfigError(f"{_INDEX} is set, but nothing says how many pods train together: set {variable('size')}")
    host = facts.environ.get(_ADDRESS) or None
    port = whole_number(facts.environ, _PORT, 1) if facts.environ.get(_PORT) else DEFAULT_PORT
    return claim_by_rank(facts, rank, size, "kubernetes", host=host, port=port, hosts=(host,) if host else ())


SOURCE = Source("kubernetes", f"{_INDEX}, and {variable('size')} or {_ADDRESS}", _is_present, _parse)
