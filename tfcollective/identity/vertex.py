"""Vertex AI's CLUSTER_SPEC: like TF_CONFIG, with pools of workers in place of roles."""

from __future__ import annotations

from collections.abc import Mapping

from tfcollective.identity.cluster import claim, load
from tfcollective.identity.model import Claim, Facts, Source
from tfcollective.tasks import CHIEF, EVALUATOR, PS, WORKER

__all__ = ["SOURCE"]

_VARIABLE = "CLUSTER_SPEC"
# The pools' places are fixed: primary replica, workers, parameter or reduction servers, evaluators.
_ROLES = {"workerpool0": CHIEF, "workerpool1": WORKER, "workerpool2": PS, "workerpool3": EVALUATOR}


def _is_present(facts: Facts) -> bool:
    text = facts.environ.get(_VARIABLE, "")
    if "workerpool" not in text:
        return False  # others use the name for clusters of their own kind
    cluster = load(text, _VARIABLE).get("cluster")
    return isinstance(cluster, Mapping) and any(name in _ROLES and members for name, members in cluster.items())


def _parse(facts: Facts) -> Claim:
    document = dict(load(facts.environ[_VARIABLE], _VARIABLE))
    cluster, task = document.get("cluster"), document.get("task")
    if isinstance(cluster, Mapping):
        document["cluster"] = {_ROLES.get(name, name): members for name, members in cluster.items()}
    if isinstance(task, Mapping):
        document["task"] = {**task, "type": _ROLES.get(str(task.get("type")), task.get("type"))}
    return claim(document, _VARIABLE, facts)


SOURCE = Source("vertex", f"{_VARIABLE} with workerpool0", _is_present, _parse)
